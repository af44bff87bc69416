"""Beam search over places: every beam is varied at each place, and the best variants are kept for the next.

Used by GRAB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from gradleak.exchange import Deadline

Place = TypeVar("Place")


def beam_search(
    beams: Tensor,
    places: Iterable[Place],
    vary: Callable[[Tensor, Place], Tensor],
    score: Callable[[Tensor], Tensor],
    width: int,
    *,
    deadline: Deadline | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the best states of many victims, varied place by place.

    Args:
        beams: the first states `[victims, beams, length]`.
        places: where to vary, in this order.
        vary: takes beams and a place; gives variants `[victims, variants, length]`, the beams themselves among them.
        score: takes states `[victims, states, length]`; gives their losses `[victims, states]`.
        width: how many beams to keep.
        deadline: when to end at the latest; states that were not scored in time have an infinite loss.

    Returns:
        The remaining beams `[victims, width, length]` and their losses, the best first.
    """
    deadline = deadline or Deadline()
    beams, losses = _keep(beams, score(beams), width)
    for place in places:
        if deadline.passed:
            break
        tried = vary(beams, place)
        scores = score(tried)
        if deadline.hit:  # the beams themselves may not have been scored among their variants
            tried, scores = torch.cat([beams, tried], dim=1), torch.cat([losses, scores], dim=1)
        beams, losses = _keep(tried, scores, width)
    return beams, losses


def _keep(states: Tensor, losses: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the best states; a state is repeated only where there are too few different ones."""
    losses = losses.masked_fill(_seen_before(states), torch.inf)
    losses, chosen = losses.sort(dim=1, stable=True)
    rows = torch.arange(len(states), device=states.device)[:, None]
    return states[rows, chosen[:, :width]], losses[:, :width]


def _seen_before(states: Tensor) -> Tensor:
    """Return which states `[victims, states]` equal an earlier one."""
    equal = torch.ones(*states.shape[:2], states.shape[1], dtype=torch.bool, device=states.device)
    for place in states.unbind(dim=-1):  # one by one, which takes less memory
        equal &= place[:, :, None] == place[:, None]
    return equal.tril(diagonal=-1).any(dim=2)
