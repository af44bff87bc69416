"""Masking: 0 is sent for entries chosen at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.entries import DroppedShare, only
from gradleak.randomness import uniform


@register
@dataclass(frozen=True)
class Mask(DroppedShare):
    """Set each entry to zero with this probability, whatever its magnitude (LAMP, appendix C.2).

    Each update gets a new mask; the entries that are sent keep their values.
    """

    name: ClassVar[str] = "mask"
    summary: ClassVar[str] = "send zero for entries chosen at random"
    by_tensor: ClassVar[bool] = True

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return each update with an independent draw for each entry, made on the generator's device."""
        return {
            name: only(tensor, (uniform(tensor.shape, generator) >= self.value).to(tensor.device))
            for name, tensor in tensors.items()
        }
