"""Clipping: an update is scaled down to a largest L2 norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.entries import BatchedDefense, norms_of


@register
@dataclass(frozen=True)
class Clip(BatchedDefense):
    """Scale the whole update down to at most this L2 norm (McMahan et al. 2018).

    The direction is unchanged: attacks that match by cosine see no difference. With `noise` after it, this is how
    differentially private federated averaging bounds one client's influence.
    """

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "scale the whole update to at most this L2 norm"
    takes: ClassVar[str] = "a norm above 0"

    value: float

    def is_sensible(self) -> bool:
        """Return whether it is a finite number above 0."""
        return self.value > 0 and math.isfinite(self.value)

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return each update, scaled by its own norm."""
        return clipped(tensors, self.value)


def clipped(tensors: Mapping[str, Tensor], limit: float) -> dict[str, Tensor]:
    """Return updates `[updates, *shape]`, each scaled down if its L2 norm is above the limit."""
    factors = (limit / norms_of(tensors)).clamp(max=1.0)  # a norm of 0 gives infinity, hence 1
    return {name: t * factors.to(t.dtype).view(-1, *[1] * (t.ndim - 1)) for name, t in tensors.items()}
