"""Pruning: 0 is sent for the entries of smallest magnitude, of each tensor or of the whole update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.entries import DroppedShare, largest, largest_of_all, num_entries, only, rows


@register
@dataclass(frozen=True)
class Prune(DroppedShare):
    """Set this share of the entries of each tensor to zero, those of smallest magnitude (Zhu et al. 2019, section 5.2).

    The share of a tensor is rounded down: at least one entry of each is sent.
    """

    name: ClassVar[str] = "prune"
    summary: ClassVar[str] = "send zero for the smallest entries of each tensor"
    by_tensor: ClassVar[bool] = True

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return each update with the largest entries of each of its tensors."""
        return {name: self._pruned(tensor) for name, tensor in tensors.items()}

    def _pruned(self, tensor: Tensor) -> Tensor:
        entries = rows(tensor)
        return only(entries, largest(entries, self.num_sent(entries.shape[1]))).view(tensor.shape)


@register
@dataclass(frozen=True)
class PruneGlobal(DroppedShare):
    """Set this share of all entries to zero, those of smallest magnitude in any tensor (Aji & Heafield 2017).

    Layers with small gradients may send nothing at all; LTI (section 4) evaluates shares up to 0.99.
    """

    name: ClassVar[str] = "prune-global"
    summary: ClassVar[str] = "send zero for the smallest entries of the whole update"

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return each update with its largest entries."""
        kept = largest_of_all(tensors, self.num_sent(num_entries(tensors)))
        return {name: only(tensor, kept[name]) for name, tensor in tensors.items()}
