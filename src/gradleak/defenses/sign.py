"""SignSGD: only the direction of each entry is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class Sign(Defense):
    """Send -1, 0 or +1 in place of each entry (signSGD, Bernstein et al. 2018)."""

    name: ClassVar[str] = "sign"
    summary: ClassVar[str] = "send only the sign of each entry"
    takes: ClassVar[str] = ""
    by_tensor: ClassVar[bool] = True

    def is_sensible(self) -> bool:
        """There is nothing to choose."""
        return True

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Nothing is random here."""
        return update.with_tensors(self.apply_each(update.tensors, generator))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Entries do not see each other."""
        return {name: tensor.sign() for name, tensor in tensors.items()}
