"""Pruning: the smallest entries stay at home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, register
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class Prune(Defense):
    """Set this share of the entries of each tensor to zero, those of smallest magnitude (Zhu et al. 2019, section 5.2).

    The share of a tensor is rounded down, so that at least one entry of each is sent.
    """

    name: ClassVar[str] = "prune"
    summary: ClassVar[str] = "send zero for the smallest entries of each tensor"
    takes: ClassVar[str] = "a share of 0 or more and below 1"

    @classmethod
    def allows(cls, value: float) -> bool:
        """A share; all of it would leave nothing to send."""
        return 0 <= value < 1

    def apply(self, update: Update, generator: torch.Generator) -> Update:
        """Nothing is random here."""
        return update.with_tensors({name: self._pruned(tensor) for name, tensor in update.tensors.items()})

    def _pruned(self, tensor: Tensor) -> Tensor:
        count = int(self.value * tensor.numel())
        flat = tensor.flatten().clone()
        flat[flat.abs().topk(count, largest=False, sorted=False).indices] = 0
        return flat.view(tensor.shape)
