"""The directions of a gradient that lie above the noise, where noise or compression leaves no exact row space.

Every singular value is non-zero then, and those of the text exceed the largest that noise alone would have (Marchenko &
Pastur 1967). Used by all readers of defended updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.leakage.perturbation import marchenko_pastur_edge

ABOVE_EDGE = 1.02
"""A singular value is signal if it exceeds the edge of the noise by this factor."""

FAINT = 0.05
"""Singular values below this fraction of the largest never count: pruning leaves a tail that no noise explains."""


@dataclass(frozen=True)
class SignalSubspace:
    """Right singular vectors of a gradient above the noise.

    All have about the same weight, whatever their singular value: a token with a small gradient is as much an input as
    any other.

    Attributes:
        factor: the weighted vectors, of unit norm together `[rank, width]`.
    """

    factor: Tensor

    @property
    def directions(self) -> Tensor:
        """The vectors at unit norm each `[rank, width]`."""
        return self.factor / self.factor.norm(dim=1, keepdim=True)

    def captured_energy(self, rows: Tensor) -> Tensor:
        """Return the fraction of the signal in the span of rows: `[…, rows, width]` gives `[…]`."""
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        inner = rows @ self.factor.T.to(rows)  # [..., rows, rank]
        gram = rows @ rows.mT
        gram = gram + 1e-6 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), inner, upper=False)
        return whitened.square().sum(dim=(-2, -1))


def signal_subspace(gradients: Sequence[Tensor], faint: float = FAINT) -> SignalSubspace | None:
    """Return the signal of gradients of maps with the same inputs; None if nothing exceeds the noise.

    Each gradient is first scaled to the same noise, measured by its median singular value, and each singular vector is
    weighted by the fraction of it that is signal: one at the edge is noise.

    Args:
        gradients: each `[outputs, width]`.
        faint: singular values below this fraction of the largest do not count.
    """
    scaled = []
    for gradient in gradients:
        values = torch.linalg.svdvals(gradient.double())
        floor = torch.maximum(values.median(), 1e-3 * values[0])  # compression may leave no noise at all
        scaled.append(gradient.double() / floor.clamp(min=torch.finfo(torch.float64).tiny))
    rows = torch.cat(scaled)
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    edge = values.median() * marchenko_pastur_edge(min(rows.shape) / max(rows.shape))
    edge = torch.maximum(edge, faint * values[0])
    clear = values > ABOVE_EDGE * edge
    if not clear.any():
        return None
    signal = (1 - (edge / values[clear]).square()).sqrt()
    return SignalSubspace(signal[:, None] * vectors[clear] / signal.norm())
