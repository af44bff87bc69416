"""What stands out of a gradient that noise or compression has changed.

Its row space is no longer exact: every singular value is there, and those of the text stand out above the edge that
noise alone would reach (Marchenko & Pastur 1967).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

ABOVE_EDGE = 1.02
FAINT = 0.05
"""Singular values below this share of the largest never count: pruning leaves a tail that no noise explains."""


@dataclass(frozen=True)
class Spikes:
    """What stands out of a gradient: its right singular vectors above the noise `[spikes, width]`, of norm 1 together.

    All count about alike, however strong they are: a token that has a small gradient was fed as much as any other.
    """

    factor: Tensor

    @property
    def directions(self) -> Tensor:
        """The same vectors, each of norm 1 `[spikes, width]`."""
        return self.factor / self.factor.norm(dim=1, keepdim=True)

    def explained(self, rows: Tensor) -> Tensor:
        """Return the share that the span of rows explains: `[…, rows, width]` gives `[…]`."""
        rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        shown = rows @ self.factor.T.to(rows)  # [..., rows, spikes]
        gram = rows @ rows.mT
        gram = gram + 1e-6 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return (
            (torch.linalg.solve_triangular(torch.linalg.cholesky(gram), shown, upper=False)).square().sum(dim=(-2, -1))
        )


def spikes(gradients: Sequence[Tensor], faint: float = FAINT) -> Spikes | None:
    """Return what stands out of gradients of maps that were fed the same vectors; None if nothing does.

    Each is first scaled to the same noise, that of its median singular value, and each spike's vector counts as much as
    it is signal: one at the edge is noise.

    Args:
        gradients: each `[outputs, width]`.
        faint: singular values below this share of the largest do not count.
    """
    scaled = []
    for gradient in gradients:
        values = torch.linalg.svdvals(gradient.double())
        floor = torch.maximum(values.median(), 1e-3 * values[0])  # compression may leave no noise at all
        scaled.append(gradient.double() / floor.clamp(min=torch.finfo(torch.float64).tiny))
    rows = torch.cat(scaled)
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    edge = values.median() * edge_by_median(min(rows.shape) / max(rows.shape))
    edge = torch.maximum(edge, faint * values[0])
    clear = values > ABOVE_EDGE * edge
    if not clear.any():
        return None
    signal = (1 - (edge / values[clear]).square()).sqrt()
    return Spikes(signal[:, None] * vectors[clear] / signal.norm())


@lru_cache
def edge_by_median(ratio: float) -> float:
    """Return the largest singular value of pure noise, in units of its median; `ratio` of columns to rows."""
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    at = np.linspace(low, high, 20_001)[1:]
    density = np.sqrt(np.maximum((high - at) * (at - low), 0)) / at
    total = np.cumsum(density)
    return float((high / at[np.searchsorted(total, total[-1] / 2)]) ** 0.5)
