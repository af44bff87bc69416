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


@dataclass(frozen=True)
class Subspace:
    """A subspace by an orthonormal basis of it, in float64.

    Attributes:
        basis: V, orthonormal columns `[width, rank]`.
        values: the singular values of the rows that span it, as shares of the largest, all of them.
    """

    basis: Tensor
    values: Tensor

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


def row_space(gradients: Sequence[Tensor], smallest: float = ROUNDING) -> Subspace:
    """Return the span of the rows of gradients `[outputs, width]`, each first scaled to the same norm.

    Args:
        gradients: gradients of linear maps that were fed the same vectors.
        smallest: singular values below this share of the largest do not count.
    """
    values, basis = _right_singular(scaled_rows(gradients))
    rank = int((values > smallest * values[0]).sum())
    return Subspace(basis[:, :rank], values / values[0])


def scaled_rows(gradients: Sequence[Tensor]) -> Tensor:
    """Return the rows of gradients one under the other, in float64, each gradient scaled to norm 1."""
    tiny = torch.finfo(torch.float64).tiny
    return torch.cat([g.double() / g.double().norm().clamp(min=tiny) for g in gradients])


def span(rows: Tensor, rank: int) -> Subspace:
    """Return the span of rows `[rows, width]` whose rank is known."""
    values, basis = _right_singular(rows)
    return Subspace(basis[:, :rank], values / values[0])


def rank(gradient: Tensor, smallest: float = ROUNDING) -> int:
    """Return the rank of one gradient."""
    values = torch.linalg.svdvals(gradient.double())
    return int((values > smallest * values[0]).sum()) if values[0] > 0 else 0


def _right_singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return singular values `[width]` and right singular vectors `[width, width]`; QR first, as rows may be many."""
    if len(rows) > rows.shape[1]:
        rows = torch.linalg.qr(rows, mode="r")[1]
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    return values, vectors.T
