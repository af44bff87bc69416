"""Low-rank approximation of a matrix whose entries are known to different precision.

A difference of float32 weights shows some entries of a gradient to six digits and others not at all, and says which:
the spacing of float32 numbers is that of the weights. The gradient of a linear map has the rank of its tokens, so the
precise entries determine the others. `fit_low_rank` alternates between rows and columns, each a weighted least-squares
problem (Srebro & Jaakkola 2003, "Weighted low-rank approximations"). With weights of eight decades this converges to
wherever the few most precise entries lead, so the weights are first levelled, and their full range is reached step by
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.leakage.noise_floor import NoiseFloor, whiten

LEVELS = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-3)
"""Deviation added to that of all entries in each iteration, as a fraction of the entries' root mean square. The last
stays: a float32 gradient has low rank to about 1e-6 of its largest entries only."""

ABOVE_EDGE = 1.05
"""A direction of the residual joins the fit if it exceeds by this factor what independent errors would leave."""

MOST_GROWTH = 0.25
"""The fraction by which the rank grows in one iteration at most."""

ITERATIONS, PROBED = 8, 20
"""Iterations of conjugate gradients, which start from the fit so far, and of those that tell how well it is known."""


WIDEST = 100.0
"""The largest variance of a row that counts, relative to the median."""


@dataclass(frozen=True)
class LowRankFit:
    """A matrix of low rank, and how well it is known.

    Attributes:
        matrix: the approximation `[rows, columns]`.
        floor: standard deviations of its entries, as products of a row's and a column's.
        right: its row space, orthonormal columns `[columns, rank]`.
    """

    matrix: Tensor
    floor: NoiseFloor
    right: Tensor


def fit_low_rank(
    matrix: Tensor,
    deviation: Tensor,
    deadline: Deadline | None = None,
    most_rank: int | None = None,
    start: Tensor | None = None,
    levels: Sequence[float] = LEVELS,
) -> LowRankFit:
    """Fit a matrix of low rank to entries of known precision.

    Args:
        matrix: the entries `[rows, columns]`.
        deviation: the standard deviation of each.
        deadline: when to return the fit so far.
        most_rank: the greatest rank; None for that of the matrix.
        start: the row space of a fit to much the same matrix `[columns, rank]`; None to begin with the strongest
            directions.
        levels: of the iterations; the last few of `LEVELS` are enough from a fit that is nearly right.
    """
    size = float(matrix.double().square().mean().sqrt().clamp(min=1e-300))
    matrix, variance = (matrix.double() / size).float(), (deviation.double() / size).square().clamp(max=1e30).float()
    most = min(*matrix.shape, most_rank or len(matrix))
    right = (_strongest(matrix, most) if start is None else start).float()
    coefficients = matrix @ right
    for number, level in enumerate(levels):
        weights = 1 / (variance + level**2)
        rows = _WeightedRows(weights, right)
        found = rows.coefficients(matrix, coefficients)
        left, triangle = torch.linalg.qr(found)
        columns = _WeightedRows(weights.T.contiguous(), left)
        found = columns.coefficients(matrix.T, right @ triangle.T)
        if number == len(levels) - 1 or (number and deadline is not None and deadline.passed):
            break
        missing = _missing_directions((matrix - left @ found.T) * weights.sqrt(), len(right.T), most)
        right = torch.linalg.qr(torch.cat([found, missing], dim=1))[0]
        coefficients = left @ (found.T @ right)
    spread = rows.spread()
    floor = NoiseFloor((spread / spread.mean()).sqrt()[:, None].double(), size * columns.spread().sqrt().double())
    found = found.double()
    return LowRankFit(size * left.double() @ found.T, floor, torch.linalg.qr(found)[0])


def _strongest(matrix: Tensor, most: int) -> Tensor:
    """Return the directions of a matrix that exceed its noise, and one more `[columns, directions]`."""
    spectrum = whiten(matrix)
    count = min(spectrum.rank + 1, most)
    return torch.linalg.qr(spectrum.right[:count].T * spectrum.floor.columns[:, None])[0]


def _missing_directions(residual: Tensor, rank: int, most: int) -> Tensor:
    """Return directions that a fit has missed `[columns, directions]`, from its residual in units of the deviations.

    Without any the entries are nearly independent and of equal size, however well that size is known, and their
    largest singular value follows from it (Marchenko & Pastur 1967).
    """
    height, width = residual.shape
    free = max((1 - rank / height) * (1 - rank / width), 1e-3)
    edge = (height**0.5 + width**0.5) * float((residual.square().mean() / free).sqrt())
    squares, vectors = torch.linalg.eigh(residual.T @ residual)
    count = int((squares > (ABOVE_EDGE * edge) ** 2).sum())
    count = min(count, int(MOST_GROWTH * rank) + 1, most - rank)
    return vectors[:, len(squares) - count :]


class _WeightedRows:
    """Each row's weighted least-squares problem, solved for all rows at once by conjugate gradients.

    They cost a few products with the basis; the normal equations of hundreds of rows would cost hundreds. A start that
    is nearly right makes up for few iterations.

    Args:
        weights: of the entries, the inverses of their variances `[rows, columns]`.
        basis: orthonormal columns `[columns, rank]`.
    """

    def __init__(self, weights: Tensor, basis: Tensor) -> None:
        self._weights, self._basis = weights, basis
        self._diagonal = (weights @ basis.square()).clamp(min=1e-30)

    def coefficients(self, matrix: Tensor, start: Tensor) -> Tensor:
        """Return the coefficients of each row of a matrix on the basis `[rows, rank]`, starting from others."""
        left = (self._weights * (matrix - start @ self._basis.T)) @ self._basis
        return start + self._solved(left, ITERATIONS)

    def spread(self) -> Tensor:
        """Return the mean variance of each row's coefficients `[rows]`, estimated from one random combination.

        Rows of which hardly an entry is known have any variance.
        """
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, self._diagonal.shape, generator=generator).to(self._diagonal) * 2 - 1
        own = (signs * self._solved(signs, PROBED)).mean(dim=1).clamp(min=1e-30)
        return own.clamp(max=WIDEST * float(own.median()))

    def _solved(self, wanted: Tensor, iterations: int) -> Tensor:
        """Return the solutions of the normal equations for right-hand sides `[rows, rank]`."""
        found, left = torch.zeros_like(wanted), wanted.clone()
        scaled = left / self._diagonal
        step, size = scaled.clone(), (left * scaled).sum(dim=1, keepdim=True)
        for _ in range(iterations):
            changed = (self._weights * (step @ self._basis.T)) @ self._basis
            length = size / (step * changed).sum(dim=1, keepdim=True).clamp(min=1e-30)
            found += length * step
            left -= length * changed
            scaled = left / self._diagonal
            before, size = size, (left * scaled).sum(dim=1, keepdim=True)
            step = scaled + size / before.clamp(min=1e-30) * step
        return found
