"""The noise floor of a gradient: which singular values are signal, whatever rounding or noise was added.

Rounding errors are proportional to an entry, a quantised block's to its largest entry, noise has one size everywhere.
All of them are close to random with a variance that is a product of a row's and a column's. `whiten` estimates both
from what the strongest directions leave, and divides by them. What was added is then a matrix of independent entries of
unit variance, whose largest singular value is known in advance, √rows + √columns (Marchenko & Pastur 1967): the edge.
What exceeds it is signal, down to directions a thousand times weaker than the strongest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ABOVE_EDGE = 1.02
"""A singular value is signal if it exceeds the edge by this factor."""

CLIFF, NEAR_EDGE = 3.0, 3.0
"""Rounding of a matrix of a few large directions is not quite random, and may exceed the edge by the second factor. The
signal then ends where the next value is smaller by the first."""

ROUNDS, BALANCING = 20, 3
"""How often the signal is removed and the variances are estimated again, and how often rows and columns alternate."""

LEAST = 1e-3
"""The least noise of a row or column, relative to the median."""


@dataclass(frozen=True)
class NoiseFloor:
    """Standard deviations of what rounding or noise added to a matrix: entry (i, j) has rows[i] · columns[j].

    Attributes:
        rows: `[rows, 1]`.
        columns: `[columns]`.
    """

    rows: Tensor
    columns: Tensor

    @property
    def edge(self) -> float:
        """The largest singular value of whitened noise."""
        return float(len(self.rows) ** 0.5 + len(self.columns) ** 0.5)

    def spectrum(self, matrix: Tensor) -> Spectrum:
        """Return the singular values and vectors of a matrix with this noise, in units of the edge."""
        left, values, right = torch.linalg.svd(self.white(matrix), full_matrices=False)
        return Spectrum(self, left, values / self.edge, right)

    def rough_spectrum(self, matrix: Tensor) -> Spectrum:
        """Return the same from the eigenvectors of MᵀM or MMᵀ, several times as fast: to a thousandth at the edge."""
        white = self.white(matrix)
        wide = len(white) < white.shape[1]
        squares, vectors = torch.linalg.eigh(white @ white.T if wide else white.T @ white)
        values, vectors = squares.clamp(min=1e-300).sqrt().flip(0), vectors.flip(1)
        left, right = (vectors, vectors.T @ white / values[:, None]) if wide else (white @ vectors / values, vectors.T)
        return Spectrum(self, left, values / self.edge, right)

    def white(self, matrix: Tensor) -> Tensor:
        """Return a matrix in which this noise has unit variance everywhere."""
        return matrix.double() / self.rows / self.columns


@dataclass(frozen=True)
class Spectrum:
    """The singular value decomposition of a whitened matrix.

    Attributes:
        floor: the noise floor by which it was whitened.
        left: left singular vectors `[rows, values]`.
        values: singular values in units of the edge.
        right: right singular vectors `[values, columns]`.
    """

    floor: NoiseFloor
    left: Tensor
    values: Tensor
    right: Tensor

    @property
    def rank(self) -> int:
        """The number of directions that are signal."""
        above = int((self.values > ABOVE_EDGE).sum())
        near = self.values[1:] < NEAR_EDGE
        steps = torch.where(near, self.values[:-1] / self.values[1:].clamp(min=1e-300), 0.0)[:above]
        cliffs = (steps > CLIFF).nonzero().flatten()
        return int(cliffs[-1]) + 1 if len(cliffs) else above

    @property
    def basis(self) -> Tensor:
        """The row space of the signal, as orthonormal columns `[columns, rank]`."""
        return torch.linalg.qr(self.right[: self.rank].T * self.floor.columns[:, None])[0]

    @property
    def error(self) -> float:
        """The fraction of a vector of the row space that noise moves outside, as a root mean square over directions."""
        columns = len(self.floor.columns)
        sizes = self.values[: self.rank] * self.floor.edge
        return float(((columns - self.rank) / sizes.square()).clamp(max=1.0).mean().sqrt()) if self.rank else 1.0

    def signal(self) -> Tensor:
        """Return the matrix without the noise, as far as it can be told apart."""
        rank = self.rank
        white = (self.left[:, :rank] * self.values[:rank] * self.floor.edge) @ self.right[:rank]
        return white * self.floor.rows * self.floor.columns


def whiten(matrix: Tensor, *, rough: bool = False) -> Spectrum:
    """Estimate the noise floor of a matrix `[rows, columns]`, and return its spectrum in units of the noise.

    Args:
        matrix: signal and noise.
        rough: whether the spectrum needs to be right to a thousandth only, which takes less time.
    """
    matrix = matrix.double()
    height, width = matrix.shape
    columns = torch.ones(width, dtype=torch.float64, device=matrix.device)
    rest, rank = matrix, 0
    for _ in range(ROUNDS):
        for _ in range(BALANCING):
            rows = _deviations(rest / columns, 1)[:, None]
            columns = _deviations(rest / rows, 0)
        free = max((1 - rank / height) * (1 - rank / width), 1e-3) ** 0.5  # the signal removed took some noise along
        floor = NoiseFloor(rows / free, columns)
        spectrum = floor.rough_spectrum(matrix)
        if spectrum.rank == rank:
            break
        rank = spectrum.rank
        rest = matrix - spectrum.signal()
    return spectrum if rough else floor.spectrum(matrix)


def _deviations(rest: Tensor, dim: int) -> Tensor:
    """Return root mean squares over a dimension; what rounding left exact, or zero, counts as a thousandth of usual."""
    sizes = rest.square().mean(dim=dim).sqrt()
    return sizes.clamp(min=max(LEAST * float(sizes.median()), 1e-300))
