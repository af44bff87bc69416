"""The gradient of one step of Adam, given those of the other steps.

The sum of several steps of Adam is no linear function of their gradients: each is divided by the root of a running mean
of squares. But entry by entry it is a function of one unknown if the gradients of all other steps are known, smooth,
and with two or three points at which it takes the observed value. Which of them is right is not known at first; that
the gradient has low rank decides it, in a few rounds: the points are weighted, a low-rank matrix is fitted to their
means, and the points near it gain weight (`leakage/low_rank.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange import Deadline, FedAvg
from gradleak.leakage.low_rank import LEVELS, LowRankFit, fit_low_rank

LEAST, MOST, POINTS = 0.01, 30.0, 16
"""The function is tabulated at 0 and at so many sizes of the gradient of either sign, relative to the usual size."""

FIRST = 4
"""Iterations of the first fit, to points that are weighted by their size alone; the others follow with the second."""

NEAR, SLACK = 3.0, 0.03
"""Points within so many deviations of the fit are likely; at least within this fraction of the usual size."""

AT_ONCE = 64
"""Rows for which the function is tabulated at a time."""

FLAT = 1e-3
"""The least slope of the function, per usual size: where it is flat it tells nothing."""


def mean_decay(training: FedAvg, total: int, weight: Tensor) -> Tensor:
    """Return what decoupled weight decay adds to the mean of so many steps, in units of the learning rate."""
    rate = sum(training.rate_factor(step, total) for step in range(total)) / total
    return rate * training.weight_decay * weight.detach()


def unknown_part(
    training: FedAvg, known: Sequence[Tensor], variances: Sequence[Tensor], shares: Sequence[float], steps: Tensor
) -> Tensor:
    """Return what parts of gradients that are not known add to the mean step of Adam, in the size of a gradient.

    With the roots of the second moments taken at their expected squares, a mean step is linear in the gradients: what
    the known parts contribute is subtracted, and the rest divided by the mean weight of the unknown parts.

    Args:
        training: the protocol, with adam or adamw.
        known: the known part of each step's gradient, as it enters the moments.
        variances: of the entries of each step's unknown part.
        shares: the fraction of each step's texts that is unknown; not all are 0.
        steps: the observed mean steps.
    """
    first = second = contributed = weight = torch.zeros_like(steps)
    total, left = len(known), [torch.zeros_like(steps) for _ in known]
    for step, (own, variance) in enumerate(zip(known, variances, strict=True)):
        first = training.beta1 * first + (1 - training.beta1) * own
        second = training.beta2 * second + (1 - training.beta2) * (own.square() + variance)
        root = (second / (1 - training.beta2 ** (step + 1))).sqrt() + training.eps
        factor = training.rate_factor(step, total) / total / (1 - training.beta1 ** (step + 1))
        contributed = contributed + factor * first / root
        for earlier in range(step + 1):
            left[earlier] += factor * (1 - training.beta1) * training.beta1 ** (step - earlier) / root
    for share, own in zip(shares, left, strict=True):
        weight = weight + share / sum(shares) * own
    return (steps - contributed) / weight


@dataclass(frozen=True)
class MomentModel:
    """The mean step of Adam as a function of the gradient of one of the steps, entry by entry.

    Attributes:
        constant: what the steps before it contribute.
        terms: of that step and each later one the first moment without it, its weight in that moment, and the same of
            the second moment.
        eps: of the optimiser.
    """

    constant: Tensor
    terms: Sequence[tuple[Tensor, float, Tensor, float]]
    eps: float

    @classmethod
    def of(cls, training: FedAvg, gradients: Sequence[Tensor], number: int) -> MomentModel:
        """Leave out the gradient of one step.

        Args:
            training: the protocol, with adam or adamw.
            gradients: of each step, as it enters the moments.
            number: which is unknown.
        """
        first = second = constant = torch.zeros_like(gradients[0])
        terms, total = [], len(gradients)
        for step, gradient in enumerate(gradients):
            own = torch.zeros_like(gradient) if step == number else gradient
            first = training.beta1 * first + (1 - training.beta1) * own
            second = training.beta2 * second + (1 - training.beta2) * own.square()
            bias = 1 - training.beta1 ** (step + 1)
            factor = training.rate_factor(step, total) / total / bias
            spread = 1 / (1 - training.beta2 ** (step + 1))
            if step < number:
                constant = constant + factor * first / ((spread * second).sqrt() + training.eps)
                continue
            later = step - number
            weight = factor * (1 - training.beta1) * training.beta1**later
            square = spread * (1 - training.beta2) * training.beta2**later
            terms.append((factor * first, weight, spread * second, square))
        return cls(constant, terms, training.eps)

    def rows(self, rows: slice) -> MomentModel:
        """Return the function of some rows."""
        terms = [(first[rows], weight, second[rows], share) for first, weight, second, share in self.terms]
        return MomentModel(self.constant[rows], terms, self.eps)

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the mean step, in units of the learning rate."""
        mean = self.constant.clone()
        square = gradient.square()
        for first, weight, second, share in self.terms:
            mean += (first + weight * gradient) / ((second + share * square).sqrt_().add_(self.eps))
        return mean


def solve_step(
    model: MomentModel, steps: Tensor, size: Tensor, tolerance: float, most_rank: int, deadline: Deadline
) -> LowRankFit:
    """Return the gradient of one step as a matrix of low rank.

    Args:
        model: the steps as a function of that gradient.
        steps: the observed mean steps `[rows, columns]`.
        size: the usual size of each entry of the gradient.
        tolerance: how well the function is known, as the other gradients are.
        most_rank: the greatest rank.
        deadline: when to return the fit so far.
    """
    fit = fit_low_rank(*solutions(model, steps, size, tolerance), deadline, most_rank, levels=LEVELS[:FIRST])
    if deadline.passed:
        return fit
    better = solutions(model, steps, size, tolerance, fit)
    return fit_low_rank(*better, deadline, most_rank, fit.right, LEVELS[FIRST - 1 :])


def solutions(
    model: MomentModel, steps: Tensor, size: Tensor, tolerance: float, fit: LowRankFit | None = None
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the points at which the function takes the observed values.

    Args:
        model: the function.
        steps: the observed values `[rows, columns]`.
        size: the usual size of each entry.
        tolerance: how well the function is known.
        fit: what is known of the points; None if they have the usual size and either sign.
    """
    if fit is None:
        near = torch.zeros_like(steps), torch.zeros_like(steps)
    else:
        near = fit.matrix.to(steps), (NEAR * fit.floor.rows * fit.floor.columns).to(steps) + SLACK * size
    means, deviations = torch.empty_like(steps), torch.empty_like(steps)
    for first in range(0, len(steps), AT_ONCE):  # a few rows at a time stay in the processor's cache
        rows = slice(first, first + AT_ONCE)
        table = _Crossings(steps[rows], size[rows], tolerance, None if fit is None else (near[0][rows], near[1][rows]))
        table.follow(model.rows(rows))
        means[rows], deviations[rows] = table.mean_and_deviation()
    return means, deviations


class _Crossings:
    """Sums over the points at which a tabulated function takes given values.

    Args:
        steps: the values.
        size: the usual size of the argument.
        tolerance: how well the function is known.
        near: where the points are likely to be, and within which distance; None for anywhere.
    """

    def __init__(self, steps: Tensor, size: Tensor, tolerance: float, near: tuple[Tensor, Tensor] | None) -> None:
        self._steps, self._size, self._tolerance, self._near = steps, size, tolerance, near
        self._weights, self._first, self._second = (torch.zeros_like(steps) for _ in range(3))

    def follow(self, model: MomentModel) -> None:
        """Tabulate the function, and add every point where it crosses the values."""
        positive = torch.logspace(math.log10(LEAST), math.log10(MOST), POINTS).tolist()
        grid = [*(-point for point in reversed(positive)), 0.0, *positive]
        left = grid[0] * self._size
        value = model(left) - self._steps
        miss, self._nearest = value.abs(), left
        for point in grid[1:]:
            right = point * self._size
            further = model(right) - self._steps
            self._cross(left, right, value, further)
            closer = further.abs() < miss
            miss = torch.where(closer, further.abs(), miss)
            self._nearest = torch.where(closer, right, self._nearest)
            left, value = right, further

    def _cross(self, left: Tensor, right: Tensor, value: Tensor, further: Tensor) -> None:
        """Add the points between two arguments where the function changes from below the values to above, or back."""
        crossed = (value > 0) != (further > 0)
        if not bool(crossed.any()):
            return
        slope = (further - value) / (right - left)
        slope = torch.where(slope == 0, 1e-30, slope)
        root = left - value / slope
        steepness = slope.abs()
        weight = torch.where(crossed, self._likelihood(root) / (steepness * self._size + FLAT), 0.0)
        spread = (self._tolerance / steepness).minimum(NEAR * self._size)
        self._weights += weight
        self._first += torch.where(crossed, weight * root, 0.0)
        self._second += torch.where(crossed, weight * (root.square() + spread.square()), 0.0)

    def _likelihood(self, root: Tensor) -> Tensor:
        """Return the weight of points: by their size, or by their distance from where they may be, with heavy tails."""
        if self._near is None:
            return (-(root / self._size).abs()).exp()
        center, distance = self._near
        return 1 / (1 + ((root - center) / distance).square()).square()

    def mean_and_deviation(self) -> tuple[Tensor, Tensor]:
        """Return the points' mean and standard deviation; where there is none, the nearest to one, known roughly."""
        none = self._weights == 0
        total = torch.where(none, 1.0, self._weights)
        mean = torch.where(none, self._nearest, self._first / total)
        rough = (self._nearest.abs() + self._size).square()
        variance = torch.where(none, rough, self._second / total - mean.square())
        return mean, variance.clamp(min=1e-10 * self._size.square()).sqrt()
