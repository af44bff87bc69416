"""The row space of a gradient: the span of what a linear map was fed.

The gradient of a linear map is Σ_i δ_i a_iᵀ over the tokens i of a batch, so that its rows lie in the span of the
map's inputs a_i, and fill it as long as there are fewer tokens than numbers in a_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 3e-7
"""Singular values below this share of the largest are rounding of float32."""

FLAT = 60.0
"""Rounding and noise have a bulk of singular values within this factor of the smallest: 14 after a cast to bfloat16, 26
of a float32 gradient. What lies further above it is signal."""

CLIFF = 3.0
"""The smallest singular value of the signal is this many times the largest of the floor; neighbours in a bulk differ
by less than a tenth."""

BULK = 4
"""A floor of fewer singular values than this cannot be told from a signal that decays."""


@dataclass(frozen=True)
class Subspace:
    """A subspace by an orthonormal basis of it, in float64.

    Attributes:
        basis: V, orthonormal columns `[width, rank]`.
        values: the singular values of the rows that span it, as shares of the largest, all of them.
        floor: the largest singular value that is rounding or noise, as a share of the largest of all; 0 if none is.
        error: the floor as a share of the smallest singular value of the signal: about the share of a vector of the
            span that rounding or noise turns out of it; 1 if no floor can be seen.
    """

    basis: Tensor
    values: Tensor
    floor: float = 0.0
    error: float = 0.0

    @property
    def rank(self) -> int:
        """Its dimension."""
        return self.basis.shape[1]

    @property
    def width(self) -> int:
        """Dimension of the space around it."""
        return self.basis.shape[0]

    def outside(self, vectors: Tensor) -> Tensor:
        """Return the share of each vector's norm that lies outside `[…]`; a vector of nothing is outside."""
        vectors = vectors.double()
        rest = vectors - (vectors @ self.basis) @ self.basis.T
        size = vectors.norm(dim=-1)
        return torch.where(size > 0, rest.norm(dim=-1) / size, 1.0)


def row_space(gradients: Sequence[Tensor], smallest: float | None = None) -> Subspace:
    """Return the span of the rows of gradients `[outputs, width]`, each first scaled to the same norm.

    Args:
        gradients: gradients of linear maps that were fed the same vectors.
        smallest: singular values below this share of the largest do not count; None for those below the cliff.
    """
    values, basis = _right_singular(scaled_rows(gradients))
    if not values[0] > 0:
        return Subspace(basis[:, :0], torch.zeros_like(values))
    values = values / values[0]
    rank = signal_rank(values) if smallest is None else int((values > smallest).sum())
    if not 0 < rank < len(values):
        exact = 0 < rank < len(basis)  # fewer rows than dimensions: what they do not span is exactly nothing
        return Subspace(basis[:, :rank], values, 0.0, 0.0 if exact else 1.0)
    return Subspace(basis[:, :rank], values, float(values[rank]), float(values[rank] / values[rank - 1]))


def signal_rank(values: Tensor) -> int:
    """Return how many singular values, sorted and as shares of the largest, stand above rounding or noise.

    Rounding is multiplicative and noise additive, but both leave a flat bulk of small singular values. The largest step
    down to such a bulk is the cliff. Without one, values above what float32 rounds to count.

    Args:
        values: singular values in descending order, the first being 1.
    """
    values = values.clamp(min=ROUNDING / FLAT)  # what float32 rounds to is one bulk, exact zeros in it or not
    steps = values[:-1] / values[1:]  # steps[k − 1]: from value k − 1 to value k
    flat = values[1:] <= FLAT * values[-1]
    flat[max(0, len(steps) - BULK + 1) :] &= bool(values[-1] < ROUNDING)
    steps = torch.where(flat, steps, 0.0)
    if len(steps) and float(steps.max()) > CLIFF:
        return int(steps.argmax()) + 1
    return int((values > ROUNDING).sum())


def scaled_rows(gradients: Sequence[Tensor]) -> Tensor:
    """Return the rows of gradients one under the other, in float64, each gradient scaled to norm 1."""
    tiny = torch.finfo(torch.float64).tiny
    return torch.cat([g.double() / g.double().norm().clamp(min=tiny) for g in gradients])


def span(rows: Tensor, rank: int, error: float = 0.0) -> Subspace:
    """Return the span of rows `[rows, width]` whose rank and error are known."""
    values, basis = _right_singular(rows)
    return Subspace(basis[:, :rank], values / values[0], error=error)


def rank(gradient: Tensor, floor: float = 0.0) -> int:
    """Return the rank of one gradient, given the floor of a row space that it belongs to.

    A square matrix has no flat bulk: its smallest singular values fall to zero. Its own floor is up to twice that of
    several matrices together.
    """
    values = torch.linalg.svdvals(gradient.double())
    return int((values > max(ROUNDING, 5 * floor) * values[0]).sum()) if values[0] > 0 else 0


def _right_singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return singular values `[width]` and right singular vectors `[width, width]`; QR first, as rows may be many."""
    if len(rows) > rows.shape[1]:
        rows = torch.linalg.qr(rows, mode="r")[1]
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    return values, vectors.T
