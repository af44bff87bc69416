"""Alignment of a batch: which reconstruction is compared with which reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradleak.metrics.scores import Scores

Matches: TypeAlias = tuple[int | None, ...]


def preferences(table: Sequence[Sequence[Scores]]) -> NDArray[np.float64]:
    """Return the weight of matching each reconstruction (column) to each reference (row).

    ROUGE-1 decides, as in LAMP and GRAB. It ignores the order of words, and two sentences of the same
    words tie: ROUGE-L, then the other scores, then the position break ties. Their factors are too
    small to outweigh a difference in ROUGE-1 that shows in print.
    """
    suits = np.array([[_preference(scores) for scores in row] for row in table], dtype=np.float64)
    return suits + 1e-12 * np.eye(*suits.shape)  # [references, reconstructions]


def _preference(scores: Scores) -> float:
    rest = scores.rouge2 + scores.exact + scores.token_accuracy
    return (scores.rouge1 + 1e-7 * scores.rougeL + 1e-9 * rest) / 100.0


def assignment(suits: NDArray[np.float64]) -> Matches:
    """Match rows to distinct columns with the largest sum of weights (LAMP)."""
    from scipy.optimize import linear_sum_assignment

    matches: list[int | None] = [None] * len(suits)
    rows, columns = linear_sum_assignment(suits, maximize=True)
    for row, column in zip(rows, columns, strict=True):
        matches[int(row)] = int(column)
    return tuple(matches)


def best(suits: NDArray[np.float64]) -> Matches:
    """Match every row to its column of largest weight; a column may be used several times (GRAB)."""
    if suits.shape[1] == 0:
        return (None,) * len(suits)
    return tuple(int(column) for column in suits.argmax(axis=1))


ALIGNMENTS = {"assignment": assignment, "best": best}


def align(
    table: Sequence[Sequence[Scores]], secrets: Sequence[int], members: Sequence[Sequence[int]], alignment: str
) -> tuple[Matches, Matches]:
    """Match each reference to a column and to a reconstruction; equal references are one secret and share a column.

    Args:
        table: the scores of each distinct reconstruction (column) against each distinct reference (row).
        secrets: for each reference its row.
        members: for each column the indices of the reconstructions with its text, each as often as it was found.
        alignment: one of `ALIGNMENTS`.
    """
    weights = np.bincount(np.asarray(secrets, dtype=np.int64), minlength=len(table))  # [rows]
    # A text that was found several times may match several references, but those equal to it come first.
    columns = [
        column
        for column, held in enumerate(members)
        for _ in range(min(len(secrets), max(1, len(held) - _repeats(table, weights, column))))
    ]
    suits = preferences(table)[:, columns] * weights[:, None]
    found = [None if match is None else columns[match] for match in ALIGNMENTS[alignment](suits)]
    chosen = tuple(found[row] for row in secrets)
    return chosen, _hand_out(secrets, chosen, members)


def _repeats(table: Sequence[Sequence[Scores]], weights: NDArray[np.int64], column: int) -> int:
    """Return how many references beyond the first equal this reconstruction."""
    return max((int(w) - 1 for row, w in zip(table, weights, strict=True) if row[column].exact), default=0)


def _hand_out(secrets: Sequence[int], columns: Matches, members: Sequence[Sequence[int]]) -> Matches:
    """Assign each reference a reconstruction of its column, a distinct one as long as there are any."""
    left = [list(held) for held in members]
    matches: list[int | None] = [None] * len(columns)
    first: dict[int, int] = {}
    repeated = [row in secrets[:place] for place, row in enumerate(secrets)]
    for place in sorted(range(len(secrets)), key=repeated.__getitem__):  # first occurrences of a secret come first
        row, column = secrets[place], columns[place]
        if column is not None:
            match = left[column].pop(0) if left[column] else first.get(row, members[column][0])
            first.setdefault(row, match)
            matches[place] = match
    return tuple(matches)
