"""Prove texts under dropout by the first layer's maps; `docs/verified.md` defines the words.

The masks of later layers are unknown, so the gradient cannot be recomputed. Instead the first layer's gradients must
leave no room for other tokens (`surplus`), and nothing else in the update may contradict (`contradictions.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradleak.attacks.sieve.dropout.contradictions import contradictions
from gradleak.attacks.sieve.dropout.sentence_clustering import SentenceClusters
from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.leakage.mask_decoding import mask_tolerance
from gradleak.leakage.proof import Proof
from gradleak.leakage.row_space import Subspace
from gradleak.targets import Target

SURPLUS = 64
"""Required margin, in bits, of the constraints over what identifies all tokens, positions and masks."""

CLEARLY_APART = 1e-2
"""A row's distance from its sentence, as a fraction of that to the next one, in a proof; rounding gives 1e-6."""

EXPLAINED = 1e-5
"""The fraction of the gradient that may stay unexplained in a proof: rounding gives 1e-7, a missing row 1e-2."""


def prove_by_first_layer(
    observed: ObservedUpdate,
    vectors: Tensor,
    clusters: SentenceClusters,
    sentences: tuple[Sentence, ...],
    dropped: float,
    loss: float,
) -> Proof:
    """Return what the first layer's maps prove, or which test of the rest of the update failed.

    Args:
        observed: the update.
        vectors: the inputs of the first maps, as found `[rows, width]`.
        clusters: the rows of each sentence.
        sentences: the token ids of each sentence.
        dropped: the fraction of entries that the masks drop.
        loss: the fraction of the gradient that the rows do not explain.
    """
    target, space = observed.target, observed.space
    spare = surplus(space, dropped, len(observed.words), mask_tolerance(space))
    decided = (
        target.task == "classification"  # a language model's last tokens leave no row
        and len(vectors) == space.rank
        and loss < max(EXPLAINED, 2 * space.width**0.5 * space.floor)
        and clusters.complete
        and clusters.spread < CLEARLY_APART
        and all(_well_formed(target, sentence) for sentence in sentences)
    )
    if not decided or spare is None:
        return Proof(unexplained=loss)
    against = contradictions(target, observed.gradient, vectors, sentences, space.floor)
    if against:
        more = f", and {len(against) - 1} more" if len(against) > 1 else ""
        line = (
            f"not confirmed: the first layer shows these texts, the rest of the update contradicts ({against[0]}{more})"
        )
        return Proof(evidence=(line,), unexplained=loss)
    line = f"proven by the first layer's maps: {len(vectors)} tokens, {spare:,} equations more than unknowns"
    return Proof(True, evidence=(line,), unexplained=loss)


def _well_formed(target: Target, sentence: Sentence) -> bool:
    """Return whether the tokenizer's first and last tokens are at the ends of a sentence and nowhere else."""
    before, after = target.special_tokens
    inner = sentence[len(before) : len(sentence) - len(after)]
    return sentence == (*before, *inner, *after) and bool(inner) and not set(inner) & {*before, *after}


def unexplained(gradient: Tensor, rows: Tensor) -> float:
    """Return ‖G − G X⁺X‖ / ‖G‖: the fraction of a gradient that the rows found do not account for."""
    gradient, rows = gradient.double(), rows.double()
    size = float(gradient.norm())
    if not size:
        return 1.0
    basis = torch.linalg.qr(rows.T)[0]
    return float((gradient - (gradient @ basis) @ basis.T).norm()) / size


def surplus(space: Subspace, dropped: float, vocabulary: int, accuracy: float) -> int | None:
    """Return how many more equations than unknowns the rows of a space satisfy; None if a wrong row could by chance.

    A mask and a token carry width · H(dropped) + log₂(vocabulary · positions) bits; every dimension outside the row
    space is an equation that holds to `accuracy` and excludes all but that fraction of them.
    """
    share = min(max(dropped, 1e-3), 0.5)
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    needed = space.width * entropy + math.log2(vocabulary * max(space.rank, 1))
    bits = -math.log2(accuracy)
    spare = (space.width - space.rank) * bits - needed
    return int(space.rank * spare / bits) if spare > SURPLUS else None
