"""The entries of an update as one vector, and the largest of them.

Entries that are not sent are filled with 0, never multiplied by it: the -0.0 of a negative entry gives its sign away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.exchange import Update


def norm_of(update: Update) -> float:
    """Return the L2 norm over all tensors together."""
    norms = [float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) for tensor in update.tensors.values()]
    return math.hypot(*norms)


def only(tensor: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen entries, and 0 in place of the others."""
    return tensor.masked_fill(~chosen, 0)


def largest(values: Tensor, count: int) -> Tensor:
    """Return where the `count` entries of largest magnitude are, True or False in the shape of `values`.

    Of equal entries as many are taken as are needed.
    """
    chosen = torch.zeros(values.numel(), dtype=torch.bool, device=values.device)
    chosen[values.flatten().abs().topk(count, sorted=False).indices] = True
    return chosen.view(values.shape)


def largest_of_all(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return where the `count` entries of largest magnitude of all tensors together are."""
    chosen = largest(torch.cat([tensor.flatten() for tensor in tensors.values()]), count)
    parts = torch.split_with_sizes(chosen, [tensor.numel() for tensor in tensors.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(tensors.items(), parts, strict=True)}
