"""Which reconstruction is held against which reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradleak.metrics.scores import Scores

Matches: TypeAlias = tuple[int | None, ...]


def preferences(table: Sequence[Sequence[Scores]]) -> NDArray[np.float64]:
    """Return how well each reconstruction (column) suits each reference (row).

    ROUGE-1 decides, as in LAMP and GRAB. It does not see the order of words, so that two sentences
    made of the same words tie: ROUGE-L, then the other scores, then the position settle that. Their
    weights are so small that they never outweigh a difference in ROUGE-1 that shows in print.
    """
    suits = np.array([[_preference(scores) for scores in row] for row in table], dtype=np.float64)
    return suits + 1e-12 * np.eye(*suits.shape)  # [references, reconstructions]


def _preference(scores: Scores) -> float:
    rest = scores.rouge2 + scores.exact + scores.token_accuracy
    return (scores.rouge1 + 1e-7 * scores.rougeL + 1e-9 * rest) / 100.0


def assignment(suits: NDArray[np.float64]) -> Matches:
    """Match every reference to a reconstruction of its own so that the sum is largest (LAMP)."""
    from scipy.optimize import linear_sum_assignment

    matches: list[int | None] = [None] * len(suits)
    rows, columns = linear_sum_assignment(suits, maximize=True)
    for row, column in zip(rows, columns, strict=True):
        matches[int(row)] = int(column)
    return tuple(matches)


def best(suits: NDArray[np.float64]) -> Matches:
    """Match every reference to the reconstruction that suits it best, however often used (GRAB)."""
    if suits.shape[1] == 0:
        return (None,) * len(suits)
    return tuple(int(column) for column in suits.argmax(axis=1))


ALIGNMENTS = {"assignment": assignment, "best": best}
