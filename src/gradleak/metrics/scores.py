"""The scores of a sentence and of a batch of sentences, from 0 to 100."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

SCORE_NAMES = ("rouge1", "rouge2", "rougeL", "exact", "token_accuracy")


@dataclass(frozen=True)
class Scores:
    """The scores of one sentence, each from 0 (nothing recovered) to 100 (all of it).

    Attributes:
        rouge1: F-measure of the words in common.
        rouge2: F-measure of the pairs of neighbouring words in common.
        rougeL: F-measure of the longest common subsequence of words.
        exact: 100 if the text is the private one as the tokenizer writes it and the tokenizer lost nothing; else 0.
        token_accuracy: percentage of positions with the true token; an unknown token is never true.
    """

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 (the field's own spelling)
    exact: float
    token_accuracy: float

    def as_dict(self) -> dict[str, float]:
        """Return the scores by name, in the order of `SCORE_NAMES`."""
        return {name: float(getattr(self, name)) for name in SCORE_NAMES}


ZERO = Scores(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class BatchScores:
    """The scores of a batch; each score of the batch is the average over its sentences.

    Attributes:
        sentences: One entry per reference.
        matches: For each reference the index of the reconstruction matched to it, or None.
        returned: Number of distinct texts that were returned.
        right: Number of these that equal a private text of the batch.
        surplus: Number of these beyond the number of sentences in the batch.
        unrepresentable: Indices of the references that the tokenizer cannot represent: they are never exact.
    """

    sentences: tuple[Scores, ...]
    matches: tuple[int | None, ...]
    returned: int = 0
    right: int = 0
    surplus: int = 0
    unrepresentable: tuple[int, ...] = ()

    def _mean(self, name: str) -> float:
        values = [float(getattr(sentence, name)) for sentence in self.sentences]
        return math.fsum(values) / len(values)

    @property
    def rouge1(self) -> float:
        """ROUGE-1 averaged over the sentences."""
        return self._mean("rouge1")

    @property
    def rouge2(self) -> float:
        """ROUGE-2 averaged over the sentences."""
        return self._mean("rouge2")

    @property
    def rougeL(self) -> float:  # noqa: N802 (the field's own spelling)
        """ROUGE-L averaged over the sentences."""
        return self._mean("rougeL")

    @property
    def exact(self) -> float:
        """Percentage of sentences recovered word for word."""
        return self._mean("exact")

    @property
    def token_accuracy(self) -> float:
        """Token accuracy averaged over the sentences."""
        return self._mean("token_accuracy")

    @property
    def precision(self) -> float | None:
        """Percentage of the returned texts that equal a private text; None if none was returned."""
        return share(self.right, self.returned)

    def as_dict(self) -> dict[str, float]:
        """Return the averages by name, in the order of `SCORE_NAMES`."""
        return {name: self._mean(name) for name in SCORE_NAMES}

    def as_record(self) -> dict[str, Any]:
        """Return the averages and the figures of the batch as a whole, ready for JSON."""
        return {
            **self.as_dict(),
            "precision": self.precision,
            "surplus": self.surplus,
            "unrepresentable": list(self.unrepresentable),
        }


def share(part: int, whole: int) -> float | None:
    """Return a part as a percentage of the whole; None if the whole is 0."""
    return 100.0 * part / whole if whole else None
