"""Gaussian noise on every entry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.defenses.base import Defense, Memory, register
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

    value: float

    def is_sensible(self) -> bool:
        """Any finite number from 0 up."""
        return self.value >= 0 and math.isfinite(self.value)

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Every entry gets its own draw."""
        return noisy(update, self.value, generator)


def noisy(update: Update, deviation: float, generator: torch.Generator) -> Update:
    """Return the update plus Gaussian noise; it is drawn on the CPU, as a GPU's own stream gives other numbers."""
    return update.with_tensors(
        {
            name: tensor + deviation * torch.randn(tensor.shape, generator=generator).to(tensor)
            for name, tensor in update.tensors.items()
        }
    )
