"""The entries of an update as one vector, and the largest of them.

Entries that are not sent are filled with 0, never multiplied by it: the -0.0 of a negative entry gives its sign away.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.exchange import Update


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
    """Return where the `count` entries of largest magnitude of each row `[rows, entries]` are, True or False.

    Of equal entries as many are taken as are needed.
    """
    chosen = torch.zeros_like(values, dtype=torch.bool)
    return chosen.scatter_(1, values.abs().topk(count, dim=1, sorted=False).indices, True)


def largest_of_all(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return where the `count` entries of largest magnitude of all tensors `[updates, *shape]` together are."""
    chosen = largest(torch.cat([rows(tensor) for tensor in tensors.values()], dim=1), count)
    parts = torch.split_with_sizes(chosen, [tensor[0].numel() for tensor in tensors.values()], dim=1)
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}


def alone(update: Update) -> dict[str, Tensor]:
    """Return an update's tensors as those of the only one of many `[1, *shape]`."""
    return {name: tensor[None] for name, tensor in update.tensors.items()}


def only_one(update: Update, tensors: Mapping[str, Tensor]) -> Update:
    """Return the update with the tensors of the only one of many `[1, *shape]`."""
    return update.with_tensors({name: tensor[0] for name, tensor in tensors.items()})
