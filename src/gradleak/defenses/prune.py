"""Pruning: the smallest entries stay at home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.entries import alone, largest, largest_of_all, only, only_one, rows
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
    by_tensor: ClassVar[bool] = True

    value: float

    def is_sensible(self) -> bool:
        """A share; all of it would leave nothing to send."""
        return 0 <= self.value < 1

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Nothing is random here."""
        return only_one(update, self.apply_each(alone(update), generator))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Each update's tensors have their own largest entries."""
        return {name: self._pruned(tensor) for name, tensor in tensors.items()}

    def _pruned(self, tensor: Tensor) -> Tensor:
        entries = rows(tensor)
        size = entries.shape[1]
        return only(entries, largest(entries, size - int(self.value * size))).view(tensor.shape)


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
        return only_one(update, self.apply_each(alone(update), generator))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Each update has its own largest entries."""
        size = sum(tensor[0].numel() for tensor in tensors.values())
        kept = largest_of_all(tensors, size - int(self.value * size))
        return {name: only(tensor, kept[name]) for name, tensor in tensors.items()}
