"""Exhaustive local search: move to the best neighbour, and never to a solution twice. Used by FET."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.search.control import Score, SearchControl

Neighbours = Callable[[Tensor, int], Iterable[Tensor]]
"""Yield the neighbours of a solution `[length]` in parts `[count, length]`, given the number of the round, from 1.

Long solutions have too many neighbours to hold at once."""


def refine(
    start: Tensor,
    neighbours: Neighbours,
    score: Score,
    iterations: int,
    control: SearchControl | None = None,
) -> tuple[Tensor, float]:
    """Return the best solution visited, and its score.

    Each round scores all neighbours, and the best of them becomes the next solution, even if it is worse than the
    present one. Visited solutions are not taken again, which leads the search out of local optima.

    Args:
        start: the first solution `[length]`.
        neighbours: where a round may go.
        score: what is minimised.
        iterations: the most rounds.
        control: when to end; its `watch` receives the best solution at the start and after every round.
    """
    control = control or SearchControl()
    best, lowest = start, float(score(start[None]))
    current, visited = start, start[None]
    for iteration in range(iterations + 1):
        control.report(best, lowest)
        if lowest <= control.tolerance or iteration == iterations or control.deadline.passed:
            break
        nearest = _nearest(neighbours(current, iteration + 1), visited, score, control.deadline)
        if nearest is None:
            break
        current, distance = nearest
        visited = torch.cat([visited, current[None]])
        if distance < lowest:
            best, lowest = current, distance
    return best, lowest


def _nearest(parts: Iterable[Tensor], visited: Tensor, score: Score, deadline: Deadline) -> tuple[Tensor, float] | None:
    """Return the best solution that was not visited yet, and its score; None if there is none."""
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
