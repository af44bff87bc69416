"""What a set of vectors does not yet explain of a site's rows: the algebra of rank-aware pursuit.

The rows are Y = C X, combinations of unknown vectors X from a known dictionary: joint sparse recovery. Rank-aware
order-recursive matching pursuit (Davies and Eldar 2012) picks the vector with the largest ‖U x‖² / ‖P x‖², where P
projects out the vectors picked so far and U is an orthonormal basis of the row space of Y P. As soon as no more vectors
are missing than Y has rows, the ratio is exactly 1 for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32 = 5e-7
"""Singular values below this fraction of the largest are rounding of float32."""

SAME = 1e-5
"""A vector of which less than this fraction of the norm is new adds nothing."""


@dataclass(frozen=True)
class SiteNoise:
    """What rounding does to the rows and vectors of a site.

    Attributes:
        rows: largest singular value of the noise in the rows, as a fraction of the rows' largest.
        vectors: relative error of a dictionary vector.
        columns: factors by which columns are scaled so that all have the same noise `[width]`; None for none.
    """

    rows: float = FLOAT32
    vectors: float = 1e-5
    columns: Tensor | None = None


class Residual:
    """Rows of an update, less what the vectors picked so far explain.

    Args:
        rows: `[rows, width]` in float64, columns scaled as the noise says.
        noise: the noise of the rows and of the vectors that will be offered.
    """

    def __init__(self, rows: Tensor, noise: SiteNoise | None = None) -> None:
        self.noise = noise or SiteNoise()
        self.rows = rows
        self.left = self.rows.clone()
        self.picked = self.rows.new_zeros(0, rows.shape[1])  # orthonormal
        self._size = float(self.rows.norm())
        values = torch.linalg.svdvals(self.rows)
        self._largest = float(values[0])
        self.rank = int((values > self.noise.rows * self._largest).sum())
        self._update_basis()

    def _update_basis(self) -> None:
        _, values, right = torch.linalg.svd(self.left, full_matrices=False)
        floor = self.noise.rows * self._largest
        weights = (1 - (floor / values.clamp(min=1e-300)).square()).clamp(min=0)  # Wiener filter
        signal = weights > 0
        self.basis = right[signal] * weights[signal].sqrt()[:, None]  # [directions, width]

    @property
    def full(self) -> bool:
        """Whether the rows may combine more vectors than there are rows or columns, so that no vector is certain."""
        return self.rank >= min(self.rows.shape)

    @property
    def explained(self) -> bool:
        """Whether nothing but noise is left."""
        return len(self.basis) == 0

    @property
    def fraction(self) -> float:
        """The fraction of the rows' norm that is left."""
        return float(self.left.norm()) / self._size if self._size else 0.0

    def weighted(self, vectors: Tensor) -> Tensor:
        """Return dictionary vectors in the units of the rows."""
        return vectors if self.noise.columns is None else vectors * self.noise.columns.to(vectors)

    def new_part(self, vectors: Tensor) -> Tensor:
        """Return the squared norm of each vector's part outside the picked ones `[vectors]`, in the vectors' format."""
        size = vectors.square().sum(dim=1)
        if len(self.picked):
            size = size - (vectors @ self.picked.to(vectors).T).square().sum(dim=1)
        return size.clamp(min=0)

    def scores(self, vectors: Tensor, new: Tensor) -> Tensor:
        """Return −log(1 − ‖U x‖² / ‖P x‖²) of each vector `[vectors]`, limited by the vectors' own error.

        Args:
            vectors: `[vectors, width]`, weighted.
            new: ‖P x‖² of each, see `new_part`.
        """
        inside = (vectors @ self.basis.to(vectors).T).square().sum(dim=1)
        error = self.noise.vectors**2 * vectors.square().sum(dim=1)
        return -torch.log(((new - inside).clamp(min=0) + error) / (new + error).clamp(min=1e-300))

    def pick(self, vector: Tensor) -> Tensor | None:
        """Project a vector out of what is left; return its new direction, None if it has none."""
        new = vector.double()
        for _ in range(2):  # twice, or rounding leaves the basis not quite orthogonal
            new = new - (new @ self.picked.T) @ self.picked
        if float(new.norm()) < SAME * float(vector.norm()):
            return None
        direction = new / new.norm()
        self.picked = torch.cat([self.picked, direction[None]])
        self.left = self.left - (self.left @ direction)[:, None] * direction
        self._update_basis()
        return direction

    def pick_all(self, vectors: Tensor) -> None:
        """Project several vectors `[vectors, width]` out of what is left."""
        for vector in vectors.double():
            new = vector
            for _ in range(2):
                new = new - (new @ self.picked.T) @ self.picked
            if float(new.norm()) >= SAME * float(vector.norm()):
                self.picked = torch.cat([self.picked, (new / new.norm())[None]])
        self.left = self.rows - (self.rows @ self.picked.T) @ self.picked
        self._update_basis()


def coefficients(rows: Tensor, vectors: Tensor) -> tuple[Tensor, float]:
    """Return the coefficients `[vectors, rows]` of rows as combinations of vectors, and the fraction that is left."""
    vectors = vectors.double()
    sizes = vectors.norm(dim=1).clamp(min=1e-300)
    solved = torch.linalg.lstsq((vectors / sizes[:, None]).T, rows.T).solution
    left = rows - solved.T @ (vectors / sizes[:, None])
    return solved / sizes[:, None], float(left.norm() / rows.norm().clamp(min=1e-300))
