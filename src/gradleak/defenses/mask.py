"""Masking: chance decides which entries stay at home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.entries import only
from gradleak.exchange import Update
from gradleak.randomness import uniform


@register
@dataclass(frozen=True)
class Mask(Defense):
    """Set each entry to zero with this probability, whatever its magnitude (LAMP, appendix C.2).

    Each update gets a mask of its own; the entries that are sent keep their values.
    """

    name: ClassVar[str] = "mask"
    summary: ClassVar[str] = "send zero for entries chosen at random"
    takes: ClassVar[str] = "a share of 0 or more and below 1"
    by_tensor: ClassVar[bool] = True

    value: float

    def is_sensible(self) -> bool:
        """A probability; at 1 nothing would be sent."""
        return 0 <= self.value < 1

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Each entry has its own draw."""
        return update.with_tensors(self.apply_each(update.tensors, generator))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Entries do not see each other; chance is drawn where the generator is."""
        return {
            name: only(tensor, (uniform(tensor.shape, generator) >= self.value).to(tensor.device))
            for name, tensor in tensors.items()
        }
