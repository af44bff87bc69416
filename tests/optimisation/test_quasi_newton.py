from __future__ import annotations

import time

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.optimisation.quasi_newton import minimise

STEEPNESS = torch.logspace(0, 4, 30)


def valley(point: Tensor) -> tuple[float, Tensor]:
    """Return a quadratic whose axes differ ten-thousandfold in steepness, with its minimum at 1."""
    off = point.flatten() - 1
    return float((STEEPNESS * off.square()).sum()), (2 * STEEPNESS * off).view_as(point)


def test_a_narrow_valley_is_followed_to_its_end() -> None:
    found = minimise(valley, torch.zeros(5, 6), 300)
    assert found.shape == (5, 6)
    assert float((found - 1).abs().max()) < 1e-2


def test_no_more_evaluations_are_made_than_allowed_but_for_a_line_search() -> None:
    calls = []
    minimise(lambda point: (calls.append(1), valley(point))[1], torch.zeros(30), 12)
    assert 5 < len(calls) <= 12 + 20


def test_the_best_point_is_returned_when_the_time_is_up() -> None:
    def slow(point: Tensor) -> tuple[float, Tensor]:
        time.sleep(0.02)
        return valley(point)

    start = torch.zeros(30)
    found = minimise(slow, start, 10_000, Deadline(0.3))
    assert valley(found)[0] < valley(start)[0]
    assert torch.equal(minimise(slow, start, 100, Deadline(0.0)), start)


def test_the_start_is_not_changed() -> None:
    start = torch.zeros(30)
    minimise(valley, start, 20)
    assert not start.any()
