"""A surrogate: a linear model of what solutions lack, learnt from those that were compared with the goal.

A solution's distance is one number, but the gradient behind it has hundreds of entries, each of which depends on the
order of the tokens. Which token stands where, and which stands shortly before which, explains most of that by mere
addition. So a few thousand comparisons teach what any other solution should lack, for a few sums in place of a pass
through the network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

ENTRIES = 256  # directions of the gradient that are modelled at most: those in which solutions differ
DIRECTIONS = 128  # directions that foretell a distance at most: those that are foretold best
LEAST_NOISE = 1e-2  # no direction is trusted more than one with this share of the largest error
ZERO = 1e-30


class Consists(Protocol):
    """Says what solutions consist of."""

    @property
    def count(self) -> int:
        """How many features there are."""
        ...

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the numbers of the features of solutions `[count, places]`, equally many for each."""
        ...


@dataclass(frozen=True)
class Features:
    """What a solution consists of: tokens at places, and pairs of tokens at small distances.

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
        """Return the numbers of the features of solutions `[count, places]`, equally many for each."""
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
class Foretold:
    """Distances foretold.

    Attributes:
        features: what solutions consist of.
        table: what each feature adds `[features, directions]`.
        base: what is there without any `[directions]`, or for each solution `[count, directions]`.
        view: the directions, of those in which a gradient is given `[entries, directions]`.
    """

    features: Consists
    table: Tensor
    base: Tensor
    view: Tensor

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return how far solutions `[…, places]` should be from the goal `[…]`, in units of the usual error."""
        return (self._added(solutions.flatten(0, -2)) + self.base).norm(dim=1).view(solutions.shape[:-1])

    def errors(self, solutions: Tensor, lacking: Tensor) -> Tensor:
        """Return by how much solutions `[count, places]` that lack `lacking` were misjudged `[count, directions]`."""
        return (lacking @ self.view).to(self.base.dtype) - self._added(solutions) - self.base

    def corrected(self, errors: Tensor) -> Foretold:
        """Return the same for as many solutions at once as there are errors, each judged with its own one added."""
        return replace(self, base=self.base + errors)

    def _added(self, solutions: Tensor) -> Tensor:
        return functional.embedding_bag(self.features(solutions), self.table, mode="sum")


class Surrogate:
    """Learns, by ridge regression, what each feature adds to what a solution lacks.

    Only sums over solutions are kept, so that learning more takes as long as what is new. Foretold distances count each
    direction by how well it is foretold (they are Mahalanobis distances of the regression's errors).

    Args:
        features: what solutions consist of.
        ridge: how strongly coefficients are drawn to zero, in solutions of average weight.
    """

    def __init__(self, features: Consists, ridge: float = 3.0) -> None:
        self.features = features
        self._ridge = ridge
        self._solutions = 0
        self._basis: Tensor | None = None  # [entries, directions]
        self._moments: Tensor | None = None  # of (1, features, directions): sums of weighted products

    def learn(self, solutions: Tensor, lacking: Tensor, weights: Tensor) -> None:
        """Take more solutions into account.

        Args:
            solutions: what was compared `[count, places]`.
            lacking: the goal's gradient minus theirs `[count, entries]`.
            weights: how much each counts `[count]`.
        """
        self.learn_features(self.features(solutions.to(lacking.device)), lacking, weights)

    def learn_features(self, rows: Tensor, lacking: Tensor, weights: Tensor) -> None:
        """Take into account what has the features of these numbers `[count, features of one]` (see `learn`)."""
        if self._basis is None:
            self._basis = _main_directions(lacking)
        present = lacking.new_zeros(len(rows), self.features.count).scatter_add_(
            1, rows, lacking.new_ones(()).expand(rows.shape)
        )
        known = torch.cat([torch.ones_like(weights)[:, None], present, lacking @ self._basis], dim=1)
        moments = known.T @ (weights[:, None] * known)
        self._moments = moments if self._moments is None else self._moments + moments
        self._solutions += len(rows)

    def fit(self) -> Foretold:
        """Return what was learnt."""
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
        trusted = _best_foretold(explained, spread - explained - 2 * penalty * effects.T @ effects)
        base = (mean[count:] - mean[:count] @ effects) @ trusted
        return Foretold(self.features, (effects @ trusted).float(), base.float(), self._basis @ trusted)


def _main_directions(lacking: Tensor) -> Tensor:
    """Return directions `[entries, directions]`, at right angles, in which gradients differ most, nearly all if few."""
    different = lacking - lacking.mean(dim=0)
    some = different[:ENTRIES].T
    return torch.linalg.qr(different.T @ (different @ torch.linalg.qr(some).Q)).Q


def _best_foretold(explained: Tensor, errors: Tensor) -> Tensor:
    """Return the directions that are foretold best, each scaled so that its usual error is one."""
    sizes, directions = torch.linalg.eigh(errors)
    scaled = directions / sizes.clamp(min=max(float(sizes[-1]) * LEAST_NOISE, ZERO)).sqrt()
    signal = (scaled * (explained @ scaled)).sum(dim=0)
    return scaled[:, signal.argsort(descending=True, stable=True)[:DIRECTIONS]]
