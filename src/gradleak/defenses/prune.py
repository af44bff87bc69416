"""Pruning: the smallest entries stay at home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.entries import largest, largest_of_all, only
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

    value: float

    def is_sensible(self) -> bool:
        """A share; all of it would leave nothing to send."""
        return 0 <= self.value < 1

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Nothing is random here."""
        return update.with_tensors({name: self._pruned(tensor) for name, tensor in update.tensors.items()})

    def _pruned(self, tensor: Tensor) -> Tensor:
        return only(tensor, largest(tensor, tensor.numel() - int(self.value * tensor.numel())))


@register
@dataclass(frozen=True)
class PruneGlobal(Defense):
    """Set this share of all entries to zero, those of smallest magnitude wherever they are (Aji & Heafield 2017).

    Layers with small gradients may send nothing at all; LTI (section 4) evaluates shares up to 0.99.
    """

    name: ClassVar[str] = "prune-global"
    summary: ClassVar[str] = "send zero for the smallest entries of the whole update"
    takes: ClassVar[str] = Prune.takes

    value: float

    def is_sensible(self) -> bool:
        """A share; all of it would leave nothing to send."""
        return 0 <= self.value < 1

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Nothing is random here."""
        kept = largest_of_all(update.tensors, update.num_values - int(self.value * update.num_values))
        return update.with_tensors({name: only(tensor, kept[name]) for name, tensor in update.tensors.items()})
