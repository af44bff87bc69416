"""Exhaustive local search: always to the best neighbour, and never twice to the same place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.search.genetic import Score, Watch

Neighbours = Callable[[Tensor, int], Tensor]
"""Takes a solution `[length]` and the number of the round, from 1; gives its neighbours `[count, length]`."""


def refine(
    start: Tensor,
    neighbours: Neighbours,
    score: Score,
    iterations: int,
    *,
    enough: float = 0.0,
    watch: Watch | None = None,
) -> tuple[Tensor, float]:
    """Return the best solution on the way, and its score.

    In each round all neighbours are scored and the best becomes the next solution, even if it is worse than the present
    one: what was visited is recorded and not taken again, so that the search leaves a local optimum behind.

    Args:
        start: the first solution `[length]`.
        neighbours: where a round may go.
        score: what is minimised.
        iterations: how many rounds there are at most.
        enough: a score that needs no improvement.
        watch: told the best solution so far, the first and after every round.
    """
    best, lowest = start, float(score(start[None]))
    current, visited = start, start[None]
    for iteration in range(iterations + 1):
        if watch is not None:
            watch(best, lowest)
        if lowest <= enough or iteration == iterations:
            break
        reached = torch.unique(neighbours(current, iteration + 1), dim=0)
        reached = reached[~(reached[:, None] == visited).all(dim=2).any(dim=1)]
        if not len(reached):
            break
        scores = score(reached)
        current = reached[scores.argmin()]
        visited = torch.cat([visited, current[None]])
        if float(scores.min()) < lowest:
            best, lowest = current, float(scores.min())
    return best, lowest
