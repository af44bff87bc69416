"""A surrogate: a linear model of the residual of a solution's gradient, fitted to solutions that were compared.

A solution's distance is one number, but the gradient behind it has hundreds of entries, each of which depends on the
order of the tokens. Which token is at which place, and which tokens are close to each other, explain most of the
gradient by mere addition. A few thousand comparisons therefore predict the residual of any other solution, for a few
sums in place of a forward pass through the network. Used by the surrogate search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

ENTRIES = 256  # directions of the gradient that are modelled at most: those in which solutions differ
DIRECTIONS = 128  # directions that a predicted distance consists of at most: those that are predicted best
LEAST_NOISE = 1e-2  # no direction is trusted more than one with this share of the largest error
ZERO = 1e-30


class FeatureMap(Protocol):
    """Maps solutions to the indices of their binary features."""

    @property
    def count(self) -> int:
        """How many features there are."""
        ...

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the indices of the features of solutions `[count, places]`, equally many for each."""
        ...


@dataclass(frozen=True)
class SequenceFeatures:
    """Features of a sequence: tokens at places, and pairs of tokens at small distances.

    Attributes:
        places: how many tokens a solution has.
        kinds: how many different ones there are.
        reach: how far apart the tokens of a pair are at most.
    """

    places: int
    kinds: int
    reach: int = 2

    @property
    def count(self) -> int:
        """How many features there are."""
        return self.kinds * (self.places + self.kinds * self._gaps)

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the indices of the features of solutions `[count, places]`, equally many for each."""
        at_places = torch.arange(0, self.places * self.kinds, self.kinds, device=solutions.device) + solutions
        pairs = [
            self.kinds * (self.places + gap * self.kinds + solutions[:, : -gap - 1]) + solutions[:, gap + 1 :]
            for gap in range(self._gaps)
        ]
        return torch.cat([at_places, *pairs], dim=1)

    @property
    def _gaps(self) -> int:
        return min(self.reach, self.places - 1)


@dataclass(frozen=True)
class SurrogatePrediction:
    """A fitted surrogate, which predicts distances.

    Attributes:
        features: the features of solutions.
        table: the effect of each feature on the residual `[features, directions]`.
        base: the residual without any feature `[directions]`, or one for each solution `[count, directions]`.
        view: the projection of a gradient's entries to these directions `[entries, directions]`.
    """

    features: FeatureMap
    table: Tensor
    base: Tensor
    view: Tensor

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the predicted distances `[…]` of solutions `[…, places]`, in units of the usual error."""
        return (self._effects(solutions.flatten(0, -2)) + self.base).norm(dim=1).view(solutions.shape[:-1])

    def errors(self, solutions: Tensor, residuals: Tensor) -> Tensor:
        """Return the true minus the predicted residuals `[count, directions]` of solutions `[count, places]`."""
        return (residuals @ self.view).to(self.base.dtype) - self._effects(solutions) - self.base

    def corrected(self, errors: Tensor) -> SurrogatePrediction:
        """Return a prediction for exactly as many solutions as there are errors, with an error added to each."""
        return replace(self, base=self.base + errors)

    def _effects(self, solutions: Tensor) -> Tensor:
        return functional.embedding_bag(self.features(solutions), self.table, mode="sum")


class Surrogate:
    """Fit the effect of each feature on the residual by ridge regression.

    Only sums over solutions are kept, which makes the cost of learning proportional to the new solutions. Predicted
    distances weight each direction by how well it is predicted (they are Mahalanobis distances under the covariance of
    the regression's errors).

    Args:
        features: the features of solutions.
        ridge: strength of the ridge penalty, in solutions of average weight.
    """

    def __init__(self, features: FeatureMap, ridge: float = 3.0) -> None:
        self.features = features
        self._ridge = ridge
        self._solutions = 0
        self._basis: Tensor | None = None  # [entries, directions]
        self._moments: Tensor | None = None  # of (1, features, directions): sums of weighted products

    def learn(self, solutions: Tensor, residuals: Tensor, weights: Tensor) -> None:
        """Add solutions to the regression.

        Args:
            solutions: solutions that were compared `[count, places]`.
            residuals: the goal's gradient minus theirs `[count, entries]`.
            weights: the weight of each `[count]`.
        """
        self.learn_features(self.features(solutions.to(residuals.device)), residuals, weights)

    def learn_features(self, rows: Tensor, residuals: Tensor, weights: Tensor) -> None:
        """Add samples given by the indices of their features `[count, features of one]` (see `learn`)."""
        if self._basis is None:
            self._basis = _main_directions(residuals)
        present = residuals.new_zeros(len(rows), self.features.count).scatter_add_(
            1, rows, residuals.new_ones(()).expand(rows.shape)
        )
        known = torch.cat([torch.ones_like(weights)[:, None], present, residuals @ self._basis], dim=1)
        moments = known.T @ (weights[:, None] * known)
        self._moments = moments if self._moments is None else self._moments + moments
        self._solutions += len(rows)

    def fit(self) -> SurrogatePrediction:
        """Solve the regression; return the fitted model."""
        assert self._moments is not None
        assert self._basis is not None
        total, mean = self._moments[0, 0], self._moments[0, 1:] / self._moments[0, 0]
        covariance = self._moments[1:, 1:] / total - mean[:, None] * mean
        count = self.features.count
        among, across, spread = covariance[:count, :count], covariance[:count, count:], covariance[count:, count:]
        penalty = self._ridge / self._solutions
        factor = torch.linalg.cholesky(among + penalty * torch.eye(count, dtype=among.dtype, device=among.device))
        effects = torch.cholesky_solve(across, factor)  # [features, directions]
        explained = effects.T @ across - penalty * effects.T @ effects
        trusted = _best_predicted(explained, spread - explained - 2 * penalty * effects.T @ effects)
        base = (mean[count:] - mean[:count] @ effects) @ trusted
        return SurrogatePrediction(self.features, (effects @ trusted).float(), base.float(), self._basis @ trusted)


def _main_directions(residuals: Tensor) -> Tensor:
    """Return orthonormal directions `[entries, directions]` in which gradients differ most; nearly all if few."""
    different = residuals - residuals.mean(dim=0)
    some = different[:ENTRIES].T
    return torch.linalg.qr(different.T @ (different @ torch.linalg.qr(some).Q)).Q


def _best_predicted(explained: Tensor, errors: Tensor) -> Tensor:
    """Return the directions that are predicted best, each scaled to a usual error of one."""
    sizes, directions = torch.linalg.eigh(errors)
    scaled = directions / sizes.clamp(min=max(float(sizes[-1]) * LEAST_NOISE, ZERO)).sqrt()
    signal = (scaled * (explained @ scaled)).sum(dim=0)
    return scaled[:, signal.argsort(descending=True, stable=True)[:DIRECTIONS]]
