"""Two moves at once, without trying all pairs: what single moves do is measured, what two do together is foretold."""

from __future__ import annotations

from torch import Tensor

MOST = 2_000  # moves of which pairs are formed: the most promising ones


def likely_pairs(residual: Tensor, changes: Tensor, count: int, seconds: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the numbers of the moves of the pairs that should come nearest to the goal `[count]`, nearest first.

    Moves that are applied one after the other change the gradient by about the sum of what each changes alone, exactly
    so if they concern different sequences of a batch. The pair's distance ‖residual − changeᵢ − changeⱼ‖² then follows
    from inner products.

    Args:
        residual: what is still lacking `[entries]`.
        changes: what each move changes `[moves, entries]`.
        count: how many pairs to return.
        seconds: only the first so many moves may come second in a pair.
    """
    alone = changes.square().sum(dim=1) - 2 * changes @ residual
    first = alone.argsort(stable=True)[:MOST]
    second = alone[:seconds].argsort(stable=True)[:MOST]
    together = alone[first, None] + alone[second] + 2 * changes[first] @ changes[second].T
    best = together.flatten().topk(min(count, together.numel()), largest=False).indices
    return first[best // len(second)], second[best % len(second)]
