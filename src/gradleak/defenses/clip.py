"""Clipping: no update is longer than this."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.entries import alone, norms_of, only_one
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class Clip(Defense):
    """Scale the whole update down to at most this L2 norm (McMahan et al. 2018).

    The direction stays, so that attacks which match by cosine see no difference; with `noise` after it, this is how
    differentially private federated averaging bounds one client's influence.
    """

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "scale the whole update to at most this L2 norm"
    takes: ClassVar[str] = "a norm above 0"

    value: float

    def is_sensible(self) -> bool:
        """Any finite number above 0."""
        return self.value > 0 and math.isfinite(self.value)

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Nothing is random here."""
        return only_one(update, clipped(alone(update), self.value))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Each update has a norm of its own."""
        return clipped(tensors, self.value)


def clipped(tensors: Mapping[str, Tensor], limit: float) -> dict[str, Tensor]:
    """Return updates `[updates, *shape]`, each scaled down if its L2 norm is above the limit."""
    factors = (limit / norms_of(tensors)).clamp(max=1.0)  # a norm of 0 gives infinity, and so 1
    return {name: t * factors.to(t.dtype).view(-1, *[1] * (t.ndim - 1)) for name, t in tensors.items()}
