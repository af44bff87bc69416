"""Rank pairs of moves by a first-order estimate of their joint effect. Used by FET's preset `thorough`."""

from __future__ import annotations

from torch import Tensor

MOST = 2_000  # pairs are formed of so many moves, the most promising ones


def likely_pairs(residual: Tensor, changes: Tensor, count: int, seconds: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the pairs of moves that should come nearest to the goal, as two index tensors `[count]`, nearest first.

    Two moves in a row change the gradient by about the sum of their single changes; exactly so if they concern
    different sequences of a batch. The pair's distance ‖residual − changeᵢ − changeⱼ‖² then follows
    from inner products.

    Args:
        residual: the goal minus the present gradient `[entries]`.
        changes: the change of the gradient by each move `[moves, entries]`.
        count: how many pairs to return.
        seconds: how many of the moves, counted from the first, may come second in a pair; all by default.
    """
    alone = changes.square().sum(dim=1) - 2 * changes @ residual
    first = alone.argsort(stable=True)[:MOST]
    second = alone[:seconds].argsort(stable=True)[:MOST]
    together = alone[first, None] + alone[second] + 2 * changes[first] @ changes[second].T
    best = together.flatten().topk(min(count, together.numel()), largest=False).indices
    return first[best // len(second)], second[best % len(second)]
