"""Entries of known precision determine a matrix of low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.leakage.low_rank import LEVELS, fit_low_rank

RANK = 5


def observed(precise: float = 0.5) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix of low rank, what is seen of it, and how well: some entries nearly exactly, others hardly."""
    stream = torch.Generator().manual_seed(3)
    truth = torch.randn(60, RANK, generator=stream, dtype=torch.float64) @ torch.randn(
        RANK, 40, generator=stream, dtype=torch.float64
    )
    deviation = torch.where(torch.rand(60, 40, generator=stream) < precise, 1e-4, 3.0).double()
    return truth, truth + deviation * torch.randn(60, 40, generator=stream, dtype=torch.float64), deviation


def error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def test_precise_entries_determine_the_others() -> None:
    truth, seen, deviation = observed()
    fit = fit_low_rank(seen, deviation)
    assert error(seen, truth) > 0.5
    assert error(fit.matrix, truth) < 0.05
    torch.testing.assert_close(fit.right.T @ fit.right, torch.eye(fit.right.shape[1], dtype=torch.float64))


def test_the_rank_is_that_of_the_signal_and_at_most_what_is_allowed() -> None:
    _, seen, deviation = observed()
    assert fit_low_rank(seen, deviation, most_rank=3).right.shape == (40, 3)
    assert RANK <= fit_low_rank(seen, deviation).right.shape[1] <= RANK + 2


def test_the_floor_is_above_the_error_that_is_left_and_below_that_of_the_entries() -> None:
    truth, seen, deviation = observed(precise=0.8)
    fit = fit_low_rank(seen, deviation)
    claimed = float((fit.floor.rows * fit.floor.columns).square().mean().sqrt())
    left = float((fit.matrix - truth).square().mean().sqrt())
    assert left < 3 * claimed < 0.1 * float(deviation.mean())


def test_a_fit_goes_on_from_one_of_much_the_same_matrix() -> None:
    truth, seen, deviation = observed()
    first = fit_low_rank(seen, deviation, levels=LEVELS[:3])
    second = fit_low_rank(seen, deviation, start=first.right, levels=LEVELS[3:])
    assert error(second.matrix, truth) < error(first.matrix, truth)


def test_a_passed_deadline_ends_a_fit_early() -> None:
    truth, seen, deviation = observed()
    hurried = fit_low_rank(seen, deviation, Deadline(0.0))
    assert error(hurried.matrix, truth) < error(seen, truth)
    assert error(hurried.matrix, truth) > error(fit_low_rank(seen, deviation).matrix, truth)
