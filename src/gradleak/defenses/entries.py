"""Entries of many updates at once: norms, the largest entries, and the base of defenses that work on them.

Entries that are not sent are filled with 0, never multiplied by it: the -0.0 of a negative entry gives its sign away.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory
from gradleak.exchange import Update


@dataclass(frozen=True)
class BatchedDefense(Defense):
    """Base of defenses without memory that change many updates in one pass: a subclass writes `apply_each` alone."""

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Return the update after the defense, as the only one of a batch."""
        return unbatched(update, self.apply_each(batch_of_one(update), generator))

    @abstractmethod
    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the updates `[updates, *shape]` after the defense, each independent of the others."""


@dataclass(frozen=True)
class DroppedShare(BatchedDefense):
    """Base of defenses that send 0 for a share of the entries; a subclass chooses them.

    Attributes:
        value: the share.
    """

    takes: ClassVar[str] = "a share of 0 or more and below 1"

    value: float

    def is_sensible(self) -> bool:
        """Return whether it is a share that leaves something to send."""
        return 0 <= self.value < 1

    def num_sent(self, size: int) -> int:
        """Return how many of `size` entries are sent; what is dropped is rounded down."""
        return size - int(self.value * size)


def rows(tensor: Tensor) -> Tensor:
    """Return each update's entries in a row `[updates, entries]`."""
    return tensor.reshape(len(tensor), -1)


def norms_of(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the L2 norm of each update `[updates]`, over all tensors `[updates, *shape]` together, in double."""
    norms = [torch.linalg.vector_norm(rows(t), dim=1, dtype=torch.float64) for t in tensors.values()]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def only(tensor: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen entries, and 0 in place of the others."""
    return tensor.masked_fill(~chosen, 0)


def largest(values: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` entries of largest magnitude in each row `[rows, entries]`.

    Ties are broken arbitrarily: exactly `count` entries are chosen.
    """
    chosen = torch.zeros_like(values, dtype=torch.bool)
    return chosen.scatter_(1, values.abs().topk(count, dim=1, sorted=False).indices, True)


def largest_of_all(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return masks of each update's `count` entries of largest magnitude over all tensors `[updates, *shape]`."""
    chosen = largest(torch.cat([rows(tensor) for tensor in tensors.values()], dim=1), count)
    parts = torch.split_with_sizes(chosen, [tensor[0].numel() for tensor in tensors.values()], dim=1)
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def num_entries(tensors: Mapping[str, Tensor]) -> int:
    """Return the number of entries of one update, over all tensors `[updates, *shape]`."""
    return sum(tensor[0].numel() for tensor in tensors.values())


def batch_of_one(update: Update) -> dict[str, Tensor]:
    """Return an update's tensors as a batch of one update `[1, *shape]`."""
    return {name: tensor[None] for name, tensor in update.tensors.items()}


def unbatched(update: Update, tensors: Mapping[str, Tensor]) -> Update:
    """Return the update with the tensors of a batch of one update `[1, *shape]`."""
    return update.with_tensors({name: tensor[0] for name, tensor in tensors.items()})
