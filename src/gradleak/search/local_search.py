"""Exhaustive local search: always to the best neighbour, and never twice to the same place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.search.genetic import Score, Watch

Neighbours = Callable[[Tensor, int], Iterable[Tensor]]
"""Takes a solution `[length]` and the number of the round, from 1; gives its neighbours, some `[count, length]` after
the other: long solutions have too many to be kept at once."""


def refine(
    start: Tensor,
    neighbours: Neighbours,
    score: Score,
    iterations: int,
    *,
    enough: float = 0.0,
    watch: Watch | None = None,
    deadline: Deadline | None = None,
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
        deadline: when to end at the latest; the score of what there was no time for is infinite.
    """
    deadline = deadline or Deadline()
    best, lowest = start, float(score(start[None]))
    current, visited = start, start[None]
    for iteration in range(iterations + 1):
        if watch is not None:
            watch(best, lowest)
        if lowest <= enough or iteration == iterations or deadline.passed:
            break
        nearest = _nearest(neighbours(current, iteration + 1), visited, score, deadline)
        if nearest is None:
            break
        current, distance = nearest
        visited = torch.cat([visited, current[None]])
        if distance < lowest:
            best, lowest = current, distance
    return best, lowest


def _nearest(parts: Iterable[Tensor], visited: Tensor, score: Score, deadline: Deadline) -> tuple[Tensor, float] | None:
    """Return the best of all solutions that were not visited, and its score; None if there is none."""
    best = None
    for part in parts:
        reached = torch.unique(part, dim=0)
        reached = reached[~(reached[:, None] == visited).all(dim=2).any(dim=1)]
        if len(reached):
            scores = score(reached)
            if best is None or float(scores.min()) < best[1]:
                best = reached[scores.argmin()], float(scores.min())
            if deadline.passed:
                break
    return best
