"""Gaussian noise on every entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

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
    by_tensor: ClassVar[bool] = True

    value: float

    def is_sensible(self) -> bool:
        """Any finite number from 0 up."""
        return self.value >= 0 and math.isfinite(self.value)

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Every entry gets its own draw."""
        return update.with_tensors(self.apply_each(update.tensors, generator))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Entries do not see each other."""
        return noisy(tensors, self.value, generator)


def noisy(tensors: Mapping[str, Tensor], deviation: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Return tensors plus Gaussian noise, drawn where the generator is: a GPU's own stream gives other numbers."""
    where = generator.device
    return {
        name: tensor + deviation * torch.randn(tensor.shape, generator=generator, device=where).to(tensor)
        for name, tensor in tensors.items()
    }
