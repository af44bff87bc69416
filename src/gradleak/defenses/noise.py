"""Gaussian noise on every entry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.defenses.base import Defense, register
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class Noise(Defense):
    """Add independent Gaussian noise of this standard deviation to every entry (Zhu et al. 2019, section 5.1).

    Without clipping this bounds no one's privacy loss; it is the baseline that the attacks' papers measure.
    """

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "add Gaussian noise to every entry"
    takes: ClassVar[str] = "a standard deviation of 0 or more"

    @classmethod
    def allows(cls, value: float) -> bool:
        """Any finite number from 0 up."""
        return value >= 0 and math.isfinite(value)

    def apply(self, update: Update, generator: torch.Generator) -> Update:
        """Draw on the CPU, then move: a GPU's own stream would give other numbers."""
        return update.with_tensors(
            {
                name: tensor + self.value * torch.randn(tensor.shape, generator=generator).to(tensor)
                for name, tensor in update.tensors.items()
            }
        )
