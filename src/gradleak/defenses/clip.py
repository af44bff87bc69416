"""Clipping: no update is longer than this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.entries import norm_of
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
        return clipped(update, self.value)


def clipped(update: Update, limit: float) -> Update:
    """Return the update, scaled down if its L2 norm is above the limit."""
    norm = norm_of(update)
    factor = min(1.0, limit / norm) if norm else 1.0
    return update.with_tensors({name: tensor * factor for name, tensor in update.tensors.items()})
