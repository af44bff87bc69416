"""What a set of vectors does not yet explain of a site's rows: the algebra of rank-aware pursuit.

The rows are Y = C X, combinations of unknown vectors X from a known dictionary: joint sparse recovery. Rank-aware
order-recursive matching pursuit (Davies and Eldar 2012) picks the vector with the largest ‖U x‖² / ‖P x‖², where P
projects out the vectors picked so far and U is an orthonormal basis of the row space of Y P. As soon as no more vectors
are missing than Y has rows, the ratio is exactly 1 for each of them.

All shapes may have a dimension before them for several sites of one width, which are then computed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32 = 5e-7
"""Singular values below this fraction of the largest are rounding of float32."""

SMALL = 256
"""Rows of matrices whose eigenvalues a GPU leaves to the CPU, and of equations that it leaves to it."""

SAME = 1e-5
"""A vector of which less than this fraction of the norm is new adds nothing."""


@dataclass(frozen=True)
class SiteNoise:
    """What rounding does to the rows and vectors of a site.

    Attributes:
        rows: largest singular value of the noise in the rows, as a fraction of the rows' largest `[]`.
        vectors: relative error of a dictionary vector.
        columns: factors by which columns are scaled so that all have the same noise `[width]`; None for none.
    """

    rows: float | Tensor = FLOAT32
    vectors: float = 1e-5
    columns: Tensor | None = None


class Residual:
    """Rows of an update, less what the vectors picked so far explain.

    Of the rows, only their directions above the noise are kept: as many as there are tokens, rather than one for each
    output of a map.

    Args:
        rows: `[rows, width]` in float64, columns scaled as the noise says.
        noise: the noise of the rows and of the vectors that will be offered.
    """

    def __init__(self, rows: Tensor, noise: SiteNoise | None = None) -> None:
        self.noise = noise or SiteNoise()
        self.rows = rows
        values, right = _singular(rows)
        self._largest = values.amax(dim=-1)
        self._sizes = values.square().sum(dim=-1).sqrt()
        self._floor = self._largest * self.noise.rows
        signal = values > self._floor[..., None]
        self._ranks = signal.sum(dim=-1)
        self.signal = (right * (values * signal)[..., None])[..., : int(self._ranks.max()), :]
        self._start()

    def _start(self) -> None:
        self.left = self.signal
        self.picked = self.rows.new_zeros(*self.rows.shape[:-2], 0, self.rows.shape[-1])  # orthonormal, or zero
        self._update_basis()

    def _update_basis(self) -> None:
        values, right = _singular(self.left)
        weights = (1 - (self._floor[..., None] / values.clamp(min=1e-300)).square()).clamp(min=0)  # Wiener filter
        most = int((weights > 0).sum(dim=-1).max()) if weights.shape[-1] else 0
        self.basis = (right * weights.sqrt()[..., None])[..., :most, :]  # [directions, width]
        self._open = (weights > 0).any(dim=-1)

    def copy(self) -> Residual:
        """Return the same rows, with what was picked; picks of the one do not change the other."""
        other = object.__new__(Residual)
        other.__dict__.update(self.__dict__)  # tensors are replaced, never changed
        return other

    def fresh(self) -> Residual:
        """Return the same rows, of which nothing is explained."""
        other = self.copy()
        other._start()
        return other

    @property
    def rank(self) -> int:
        """The number of the rows' directions above the noise; the largest of several sites'."""
        return int(self._ranks.max())

    @property
    def error(self) -> float:
        """The fraction of a vector of the row space that noise moves outside, a root mean square over directions."""
        height, width = self.rows.shape[-2:]
        level = self._floor / (height**0.5 + width**0.5)
        sizes = self.signal.norm(dim=-1).clamp(min=1e-300)
        moved = ((width - self.rank) * (level / sizes).square()).clamp(max=1.0)
        return float(moved.mean().sqrt()) if self.rank else 1.0

    @property
    def full(self) -> bool:
        """Whether the rows may combine more vectors than there are rows or columns, so that no vector is certain."""
        return self.rank >= min(self.rows.shape[-2:])

    @property
    def explained(self) -> bool:
        """Whether nothing but noise is left."""
        return not bool(self._open.any())

    @property
    def fractions(self) -> Tensor:
        """The fraction of the rows' norm that is left at each site, 0 where it is noise `[]`."""
        left = self.left.square().sum(dim=(-1, -2)).sqrt() / self._sizes.clamp(min=1e-300)
        return left * self._open

    @property
    def fraction(self) -> float:
        """The fraction of the rows' norm that is left, that of the site of which most is."""
        return float((self.left.square().sum(dim=(-1, -2)).sqrt() / self._sizes.clamp(min=1e-300)).max())

    def weighted(self, vectors: Tensor) -> Tensor:
        """Return dictionary vectors in the units of the rows."""
        return vectors if self.noise.columns is None else vectors * self.noise.columns.to(vectors)

    def pick(self, vector: Tensor) -> Tensor:
        """Project a vector `[width]` out of what is left; return its new direction, zero if it has none."""
        new = vector.double()
        for _ in range(2):  # twice, or rounding leaves the basis not quite orthogonal
            new = new - ((new[..., None, :] @ self.picked.mT) @ self.picked).squeeze(-2)
        size = new.norm(dim=-1, keepdim=True)
        is_new = size > SAME * vector.double().norm(dim=-1, keepdim=True)
        direction = new / size.clamp(min=1e-300) * is_new
        self.picked = torch.cat([self.picked, direction[..., None, :]], dim=-2)
        self.left = self.left - (self.left @ direction[..., None]) * direction[..., None, :]
        self._update_basis()
        return direction

    def pick_all(self, vectors: Tensor) -> None:
        """Project several vectors `[vectors, width]` out of what is left."""
        new = vectors.double()
        new = new / new.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        for _ in range(2):
            new = new - (new @ self.picked.mT) @ self.picked
            values, right = _singular(new)
            new = right * (values > SAME)[..., None]
        self.picked = torch.cat([self.picked, new], dim=-2)
        self.left = self.signal - (self.signal @ self.picked.mT) @ self.picked
        self._update_basis()


class Dictionary:
    """Vectors that may be picked, with what their scores are made of.

    Args:
        residual: the rows that they may explain.
        vectors: `[vectors, width]`, weighted as the rows are; more may be added.
    """

    def __init__(self, residual: Residual, vectors: Tensor) -> None:
        self.residual = residual
        self._vectors = vectors
        self._sizes = vectors.square().sum(dim=-1)
        self._new = self._without_picked(vectors, self._sizes)
        self._count = vectors.shape[-2]

    def _without_picked(self, vectors: Tensor, sizes: Tensor) -> Tensor:
        """Return ‖P x‖² of each vector `[vectors]`, in the vectors' format."""
        picked = self.residual.picked
        if not picked.shape[-2]:
            return sizes.clone()
        return (sizes - (vectors @ picked.to(vectors).mT).square().sum(dim=-1)).clamp(min=0)

    def __len__(self) -> int:
        return self._count

    @property
    def vectors(self) -> Tensor:
        """All vectors `[vectors, width]`."""
        return self._vectors[..., : self._count, :]

    def add(self, vectors: Tensor) -> None:
        """Add vectors `[vectors, width]`."""
        sizes = vectors.square().sum(dim=-1)
        first, self._count = self._count, self._count + vectors.shape[-2]
        if self._count > self._vectors.shape[-2]:
            room = 2 * self._count
            self._vectors = _grown(self._vectors, room, dim=-2)
            self._sizes, self._new = (_grown(own, room, dim=-1) for own in (self._sizes, self._new))
        self._vectors[..., first : self._count, :] = vectors
        self._sizes[..., first : self._count] = sizes
        self._new[..., first : self._count] = self._without_picked(vectors, sizes)

    def scores(self) -> Tensor:
        """Return −log(1 − ‖U x‖² / ‖P x‖²) of each vector `[vectors]`, limited by the vectors' own error."""
        new, sizes = self._new[..., : self._count], self._sizes[..., : self._count]
        inside = (self.vectors @ self.residual.basis.to(new).mT).square().sum(dim=-1)
        error = self.residual.noise.vectors**2 * sizes
        return -torch.log(((new - inside).clamp(min=0) + error) / (new + error).clamp(min=1e-30))

    def pick(self, number: int) -> None:
        """Project one of the vectors out of the rows, and out of the others."""
        direction = self.residual.pick(self._vectors[..., number, :]).to(self._vectors)
        new = self._new[..., : self._count]
        new -= (self.vectors @ direction[..., None]).squeeze(-1).square()
        new.clamp_(min=0)


def stacked(residuals: Sequence[Residual]) -> Residual:
    """Return sites of one width as one residual of which nothing is explained; rows are those above the noise."""
    most = max(residual.signal.shape[0] for residual in residuals)
    rows = torch.stack([_grown(residual.signal, most, dim=-2) for residual in residuals])
    floors = torch.stack([torch.as_tensor(residual._floor / residual._largest) for residual in residuals])
    scales = [residual.noise.columns for residual in residuals if residual.noise.columns is not None]
    error = max(residual.noise.vectors for residual in residuals)
    noise = SiteNoise(floors.to(rows), error, torch.stack(scales)[:, None] if scales else None)
    return Residual(rows, noise)


def coefficients(rows: Tensor, vectors: Tensor) -> tuple[Tensor, float]:
    """Return the coefficients `[vectors, rows]` of rows as combinations of vectors, and the fraction that is left."""
    vectors = vectors.double()
    sizes = vectors.norm(dim=1).clamp(min=1e-300)
    table = (vectors / sizes[:, None]).T
    solved = _solved(table, rows.T)
    left = rows - solved.T @ table.T
    return solved / sizes[:, None], float(left.norm() / rows.norm().clamp(min=1e-300))


def _solved(table: Tensor, columns: Tensor) -> Tensor:
    """Return the least-squares solution; a GPU's solver takes no dependent vectors, so that it has large ones alone."""
    if table.is_cuda and max(table.shape[1], columns.shape[1]) > SMALL:
        solved = torch.linalg.lstsq(table, columns).solution
        if bool(torch.isfinite(solved).all()):
            return solved
    return torch.linalg.lstsq(table.cpu(), columns.cpu()).solution.to(table)


def _singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return singular values and right singular vectors of float64 rows, largest first; zeros for values of zero.

    From the smaller Gram matrix: values below 1e-8 of the largest are lost, but it takes a tenth of the time.
    """
    height, width = rows.shape[-2:]
    if not height:
        return rows.new_zeros(*rows.shape[:-2], 0), rows
    tall = height > width
    squares, vectors = _eigh(rows.mT @ rows if tall else rows @ rows.mT)
    values = squares.flip(-1).clamp(min=0).sqrt()
    vectors = vectors.flip(-1).mT
    values = torch.where(values > 1e-8 * values[..., :1], values, 0.0)
    if tall:
        return values, vectors * (values > 0)[..., None]
    return values, torch.where(values[..., None] > 0, vectors @ rows / values.clamp(min=1e-300)[..., None], 0.0)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors; of small matrices the CPU computes them sooner than a GPU."""
    if matrices.is_cuda and matrices.shape[-1] <= SMALL:
        squares, vectors = torch.linalg.eigh(matrices.cpu())
        return squares.to(matrices.device), vectors.to(matrices.device)
    squares, vectors = torch.linalg.eigh(matrices)
    return squares, vectors


def _grown(tensor: Tensor, size: int, dim: int) -> Tensor:
    """Return a tensor with zeros added at the end of one dimension."""
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim=dim)
