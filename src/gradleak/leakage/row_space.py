"""The row space of a gradient: the span of a linear map's inputs.

The gradient of a linear map is Σ_i δ_i a_iᵀ over the tokens i of a batch. Its rows lie in the span of the inputs a_i,
and fill it as long as the batch has fewer tokens than a_i has entries. Used by sieve and by `examine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.leakage.noise_floor import Spectrum, whiten

ROUNDING = 3e-7
"""Singular values below this fraction of the largest are float32 rounding."""

FLAT = 60.0
"""Rounding and noise leave a bulk of singular values within this factor of the smallest: 14 after a cast to bfloat16,
26 for a float32 gradient. Values further above are signal."""

CLIFF = 3.0
"""The smallest singular value of the signal is this many times the largest of the noise floor; neighbours in a bulk
differ by less than a tenth."""

BULK = 4
"""A noise floor of fewer singular values than this cannot be distinguished from a decaying signal."""

CLEAN = 1e-6
"""A noise floor below this is that of float32."""


@dataclass(frozen=True)
class Subspace:
    """A subspace, given by an orthonormal basis in float64.

    Attributes:
        basis: V, orthonormal columns `[width, rank]`.
        values: all singular values of the rows that span it, as fractions of the largest.
        floor: noise floor: the largest singular value due to rounding or noise, as a fraction of the largest of all; 0
            if there is none.
        error: the floor as a fraction of the signal's smallest singular value, which is about the fraction of a vector
            of the span that rounding or noise moves outside; 1 if no floor is visible.
    """

    basis: Tensor
    values: Tensor
    floor: float = 0.0
    error: float = 0.0

    @property
    def rank(self) -> int:
        """The dimension of the subspace."""
        return self.basis.shape[1]

    @property
    def width(self) -> int:
        """The dimension of the surrounding space."""
        return self.basis.shape[0]

    def outside(self, vectors: Tensor) -> Tensor:
        """Return the fraction of each vector's norm that lies outside `[…]`; 1 for a zero vector."""
        vectors = vectors.double()
        residual = vectors - (vectors @ self.basis) @ self.basis.T
        size = vectors.norm(dim=-1)
        return torch.where(size > 0, residual.norm(dim=-1) / size, 1.0)


def row_space(gradients: Sequence[Tensor], smallest: float | None = None, *, perturbed: bool = False) -> Subspace:
    """Return the span of the rows of gradients `[outputs, width]`, each first scaled to unit norm.

    Args:
        gradients: gradients of linear maps with the same inputs.
        smallest: singular values below this fraction of the largest do not count; None to cut at the noise floor.
        perturbed: whether rounding, noise or local steps changed the gradients. Their noise floor is then found by
            whitening (`noise_floor.py`), unless it is that of float32. Of an unchanged gradient with more tokens than
            dimensions, whitening would take a part for noise.
    """
    rows = scaled_rows(gradients)
    values, basis = _right_singular(rows)
    if not values[0] > 0:
        return Subspace(basis[:, :0], torch.zeros_like(values))
    values = values / values[0]
    rank = signal_rank(values) if smallest is None else int((values > smallest).sum())
    clean = rank < len(values) and bool(values[rank] < CLEAN)
    if perturbed and not clean and len(rows) >= len(basis):
        return signal_space(whiten(rows))
    if not 0 < rank < len(values):
        exact = 0 < rank < len(basis)  # fewer rows than dimensions: the complement is exactly empty
        return Subspace(basis[:, :rank], values, 0.0, 0.0 if exact else 1.0)
    return Subspace(basis[:, :rank], values, float(values[rank]), float(values[rank] / values[rank - 1]))


def signal_space(spectrum: Spectrum) -> Subspace:
    """Return the row space of what exceeds the noise floor; its largest possible rank if nothing does."""
    values = spectrum.values / spectrum.values[0]
    if not spectrum.rank:
        return Subspace(spectrum.right.T, values, 0.0, 1.0)
    floor = max(
        1 / float(spectrum.values[0]), 2 * CLEAN
    )  # columns that rounding left exact would lower it to any value
    return Subspace(spectrum.basis, values, floor, spectrum.error)


def signal_rank(values: Tensor) -> int:
    """Return how many singular values lie above rounding or noise.

    Rounding is multiplicative and noise additive, but both leave a flat bulk of small singular values. The signal ends
    at the largest step down to such a bulk. Without one, all values above float32 rounding count.

    Args:
        values: singular values in descending order, the first being 1.
    """
    values = values.clamp(min=ROUNDING / FLAT)  # float32 rounding is one bulk, whether or not it has exact zeros
    steps = values[:-1] / values[1:]  # steps[k − 1]: from value k − 1 to value k
    flat = values[1:] <= FLAT * values[-1]
    flat[max(0, len(steps) - BULK + 1) :] &= bool(values[-1] < ROUNDING)
    steps = torch.where(flat, steps, 0.0)
    if len(steps) and float(steps.max()) > CLIFF:
        return int(steps.argmax()) + 1
    return int((values > ROUNDING).sum())


def scaled_rows(gradients: Sequence[Tensor]) -> Tensor:
    """Return the rows of all gradients in one matrix, in float64, each gradient scaled to unit norm."""
    tiny = torch.finfo(torch.float64).tiny
    return torch.cat([g.double() / g.double().norm().clamp(min=tiny) for g in gradients])


def span(rows: Tensor, rank: int, error: float = 0.0) -> Subspace:
    """Return the span of rows `[rows, width]` whose rank and error are known."""
    values, basis = _right_singular(rows)
    return Subspace(basis[:, :rank], values / values[0], error=error)


def matrix_rank(gradient: Tensor, floor: float = 0.0) -> int:
    """Return the rank of one gradient, given the noise floor of the row space that it belongs to.

    The singular values of a square matrix have no flat bulk: the smallest fall to zero. The noise floor of one matrix
    is up to twice that of several matrices together.
    """
    values = torch.linalg.svdvals(gradient.double())
    return int((values > max(ROUNDING, 5 * floor) * values[0]).sum()) if values[0] > 0 else 0


def _right_singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return singular values `[width]` and right singular vectors `[width, width]`; QR first, as rows may be many."""
    if len(rows) > rows.shape[1]:
        rows = torch.linalg.qr(rows, mode="r")[1]
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    return values, vectors.T
