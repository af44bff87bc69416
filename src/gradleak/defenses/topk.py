"""Top-k with error feedback: the largest entries are sent, the others added to the next update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.entries import largest_of_all, num_entries, only
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class TopK(Defense):
    """Send this share of all entries, the largest, and add the rest to the next update (Stich et al. 2018).

    A compression that saves communication. With a memory nothing is lost over the rounds: what was sent and what is
    remembered add up to what would have been sent. Without a memory this is `prune-global` with the complementary
    share. The share is rounded down, but at least one entry is sent.
    """

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "send the largest entries of the whole update, keep the rest for the next one"
    takes: ClassVar[str] = "a share above 0 and at most 1"

    value: float

    def is_sensible(self) -> bool:
        """Return whether it is a share that sends something."""
        return 0 < self.value <= 1

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Return the largest entries of the update plus what was not sent yet, which `memory` holds by tensor name."""
        rest = memory or {}
        owed = {name: tensor + rest[name] if name in rest else tensor for name, tensor in update.tensors.items()}
        chosen = self._chosen({name: tensor[None] for name, tensor in owed.items()})
        if memory is not None:
            memory.update({name: only(tensor, ~chosen[name][0]) for name, tensor in owed.items()})
        return update.with_tensors({name: only(tensor, chosen[name][0]) for name, tensor in owed.items()})

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return each update with its largest entries, without a memory."""
        chosen = self._chosen(tensors)
        return {name: only(tensor, chosen[name]) for name, tensor in tensors.items()}

    def _chosen(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        size = num_entries(tensors)
        return largest_of_all(tensors, max(int(self.value * size), min(1, size)))
