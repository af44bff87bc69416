"""One hill climber for every search of sieve that improves a sentence step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")


def hill_climb(
    start: tuple[State, float],
    step: Callable[[State, tuple[State, float]], tuple[State, float] | None],
    *,
    steps: int | None = None,
    patience: int = 0,
    least_gain: float = 0.0,
) -> tuple[State, float]:
    """Follow steps to better states, and return the best state with its value.

    Args:
        start: a state and its value; larger is better.
        step: called with the current state, and the best one with its value; returns the next state and its value, None
            to stop.
        steps: the greatest number of steps; None for no limit.
        patience: how many steps in a row may bring no gain.
        least_gain: a smaller improvement is no gain.
    """
    best, best_value = start
    state, idle, taken = best, 0, 0
    while steps is None or taken < steps:
        found = step(state, (best, best_value))
        if found is None:
            break
        state, value = found
        taken += 1
        idle = 0 if value > best_value + least_gain else idle + 1
        if idle > patience:
            break
        if not idle:
            best, best_value = state, value
    return best, best_value
