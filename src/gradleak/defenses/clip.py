"""Clipping: no update is longer than this."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.defenses.base import Defense, register
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

    @classmethod
    def allows(cls, value: float) -> bool:
        """Any finite number above 0."""
        return value > 0 and math.isfinite(value)

    def apply(self, update: Update, generator: torch.Generator) -> Update:
        """Nothing is random here."""
        norm = math.sqrt(math.fsum(float(tensor.double().pow(2).sum()) for tensor in update.tensors.values()))
        factor = min(1.0, self.value / norm) if norm else 1.0
        return update.with_tensors({name: tensor * factor for name, tensor in update.tensors.items()})
