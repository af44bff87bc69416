"""SignSGD: only the sign of each entry is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.entries import BatchedDefense


@register
@dataclass(frozen=True)
class Sign(BatchedDefense):
    """Send -1, 0 or +1 in place of each entry (signSGD, Bernstein et al. 2018)."""

    name: ClassVar[str] = "sign"
    summary: ClassVar[str] = "send only the sign of each entry"
    takes: ClassVar[str] = ""
    by_tensor: ClassVar[bool] = True

    def is_sensible(self) -> bool:
        """Return True: there is no number to check."""
        return True

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the signs of each update's entries."""
        return {name: tensor.sign() for name, tensor in tensors.items()}
