"""Group rows into sentences in closed form.

Softmax is invariant to a shift of all scores, so the gradients of a sentence's keys sum to zero. Under dropout all
rows of a batch are different, and D = dWk X̃⁺ gives every token's key gradient: the null space of D is spanned by the
sentences' indicator vectors, and two tokens have the same row in a basis of it exactly if they belong to one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

MISSING = 1e-5
"""The part of the gradient outside the rows found is rounding below this fraction of it."""


@dataclass(frozen=True)
class SentenceClusters:
    """Rows grouped into sentences.

    Attributes:
        sentences: the indices of each sentence's rows, in order of position.
        spread: the greatest distance of a row from its sentence, as a fraction of that to the nearest other sentence.
        complete: whether every sentence has exactly one row at each position up to its last.
    """

    sentences: tuple[tuple[int, ...], ...]
    spread: float
    complete: bool


def key_gradients(gradient: Tensor, rows: Tensor, floor: float = 0.0) -> Tensor:
    """Return each row's output gradient `[outputs, rows]` from a weight gradient and the map's inputs.

    Rows that were not found leave a part of the gradient outside the span of the others; its columns span their output
    gradients. With these directions removed, the found rows' gradients are exact, and a sentence's still sum to 0.

    Args:
        gradient: the gradient of the map's weight `[outputs, width]`.
        rows: the inputs of the map `[rows, width]`.
        floor: the noise floor of the maps' row space.
    """
    gradient, rows = gradient.double(), rows.double()
    basis = torch.linalg.qr(rows.T)[0]
    left, values, _ = torch.linalg.svd(gradient - (gradient @ basis) @ basis.T, full_matrices=False)
    missing = left[:, values > max(MISSING, 5 * floor) * torch.linalg.matrix_norm(gradient, 2)]
    return (gradient - missing @ (missing.T @ gradient)) @ torch.linalg.pinv(rows)


def cluster_rows(
    key_gradient: Tensor, rows: Tensor, positions: Sequence[int], sentences: int, floor: float = 0.0
) -> SentenceClusters:
    """Group rows into sentences.

    Args:
        key_gradient: gradient of the key map `[outputs, width]`.
        rows: the inputs of the map `[rows, width]`.
        positions: the position of each row.
        sentences: the number of sentences.
        floor: the noise floor of the maps' row space.
    """
    each = key_gradients(key_gradient, rows, floor)
    null_space = torch.linalg.svd(each, full_matrices=True)[2][-sentences:]
    signature = null_space.T  # [rows, sentences]
    starts = _seeds(signature, [row for row, position in enumerate(positions) if position == 0][:sentences], sentences)
    distances = torch.cdist(signature, signature[starts])
    found: list[list[int]] = [[] for _ in starts]
    spread = 0.0
    for position in sorted(set(positions)):
        there = [row for row, p in enumerate(positions) if p == position]
        cost = distances[there]
        for index, sentence in zip(*linear_sum_assignment(cost.cpu().numpy()), strict=True):
            found[sentence].append(there[index])
            others = torch.cat([cost[index, :sentence], cost[index, sentence + 1 :]])
            if len(others):
                spread = max(spread, float(cost[index, sentence] / others.min().clamp(min=1e-300)))
    complete = sum(map(len, found)) == len(positions) and all(
        [positions[row] for row in rows_of] == list(range(len(rows_of))) for rows_of in found
    )
    return SentenceClusters(tuple(map(tuple, found)), spread, complete)


def one_sentence(positions: Sequence[int]) -> SentenceClusters:
    """Return all rows as one sentence, with one row for each position."""
    first = {positions[row]: row for row in reversed(range(len(positions)))}
    chosen = tuple(first[position] for position in sorted(first))
    complete = len(chosen) == len(positions) and sorted(first) == list(range(len(positions)))
    return SentenceClusters((chosen,), 0.0, complete)


def _seeds(signature: Tensor, starts: list[int], count: int) -> list[int]:
    """Return one row of each sentence: those at the start, and if one is missing, the row farthest from all others."""
    seeds = starts or [0]
    while len(seeds) < min(count, len(signature)):
        seeds = [*seeds, int(torch.cdist(signature, signature[seeds]).amin(dim=1).argmax())]
    return seeds
