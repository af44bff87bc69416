"""Scores of a reconstruction against the private texts (docs/scores.md)."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.errors import GradleakError
from gradleak.exchange import Reconstruction
from gradleak.metrics import Alignment, BatchScores, Scoring, score_tokens


def score(
    reconstruction: Reconstruction,
    references: Sequence[str],
    *,
    alignment: Alignment = "assignment",
    scoring: Scoring = "plain",
) -> BatchScores:
    """Score a reconstruction against the private texts, from 0 (nothing recovered) to 100 (docs/scores.md).

    Args:
        reconstruction: the result of an attack.
        references: the private texts, in any order.
        alignment: `assignment` matches each reconstructed text at most as often as it was found; `best` matches every
            private text with the reconstruction that fits it best.
        scoring: `plain`, or `lamp` for ROUGE as LAMP's published code counts it.

    Raises:
        GradleakError: if there is nothing to score against.
    """
    if isinstance(references, str):
        raise GradleakError("references must be a list of strings, not one string")
    if reconstruction.tokenizer is None:
        raise GradleakError("this reconstruction has no tokenizer to score with; set its field 'tokenizer'")
    rows = reconstruction.tokenizer(list(references))["input_ids"] if references else []
    return score_tokens(
        reconstruction.token_ids,
        rows,
        reconstruction.tokenizer,
        texts=references,
        copies=reconstruction.copies,
        alignment=alignment,
        scoring=scoring,
    )
