"""All sequences that are one move away."""

from __future__ import annotations

import torch
from torch import Tensor


def neighbour_orders(free: Tensor) -> Tensor:
    """Return every order of a batch that swaps two tokens of a sequence, or moves one to another place.

    Args:
        free: True where a token may be moved `[sequences, tokens]`.

    Returns:
        Orders `[neighbours, sequences, tokens]`, the present order first, no order twice; on the device of `free`.
    """
    sequences, tokens = free.shape
    identity = torch.arange(tokens).expand(sequences, tokens)
    found = {tuple(identity.flatten().tolist()): None}
    for number, row in enumerate(free.cpu()):
        places = row.nonzero().flatten()
        for order in _one_move_away(len(places)):
            whole = identity.clone()
            whole[number, places] = places[order]
            found[tuple(whole.flatten().tolist())] = None
    return torch.tensor(list(found), device=free.device).view(-1, sequences, tokens)


def _one_move_away(length: int) -> list[Tensor]:
    orders = []
    for i in range(length):
        for j in range(length):
            if i < j:
                swapped = list(range(length))
                swapped[i], swapped[j] = j, i
                orders.append(torch.tensor(swapped))
            if i != j:
                moved = [k for k in range(length) if k != i]
                moved.insert(j, i)
                orders.append(torch.tensor(moved))
    return orders
