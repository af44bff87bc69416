"""Moves on token sequences, many at once.

A move is drawn as an order: new[i] = old[order[i]]. Orders apply alike to token ids, embeddings and whatever else is
kept token by token. Places that are not free (special tokens, padding) stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Move = Callable[[int, torch.Generator], Tensor]


def swap(length: int, generator: torch.Generator) -> Tensor:
    """Exchange the tokens at two places (LAMP, section 4.3)."""
    order = torch.arange(length)
    i, j = _places(length, 2, generator)
    order[i], order[j] = order[j].clone(), order[i].clone()
    return order


def move_token(length: int, generator: torch.Generator) -> Tensor:
    """Take one token out and put it in somewhere else."""
    i, j = _places(length, 2, generator)
    return _moved(length, i, i + 1, j)


def move_subsequence(length: int, generator: torch.Generator) -> Tensor:
    """Take several tokens in a row out and put them in somewhere else."""
    i, j = sorted(_places(length, 2, generator))
    return _moved(length, i, j + 1, int(torch.randint(length - (j - i), (), generator=generator)))


def move_prefix(length: int, generator: torch.Generator) -> Tensor:
    """Move the beginning to the end."""
    cut = int(torch.randint(1, length, (), generator=generator))
    return torch.cat([torch.arange(cut, length), torch.arange(cut)])


def shuffle(length: int, generator: torch.Generator) -> Tensor:
    """Put all tokens in a random order."""
    return torch.randperm(length, generator=generator)


LAMP_MOVES: tuple[Move, ...] = (swap, move_token, move_subsequence, move_prefix)


def draw_orders(free: Tensor, count: int, moves: Sequence[Move], generator: torch.Generator) -> Tensor:
    """Draw orders for a batch of sequences: each moves the free tokens of one sequence by one of the moves.

    Args:
        free: True where a token may be moved `[sequences, tokens]`.
        count: how many orders to draw.
        moves: what to choose from, each as likely as the others.
        generator: source of randomness, on the CPU.

    Returns:
        Orders `[count, sequences, tokens]`, on the device of `free`.
    """
    sequences, tokens = free.shape
    orders = torch.arange(tokens).expand(count, sequences, tokens).clone()
    places = [row.nonzero().flatten() for row in free.cpu()]
    movable = [number for number, row in enumerate(places) if len(row) > 1]
    for order in orders if movable else ():
        number = movable[int(torch.randint(len(movable), (), generator=generator))]
        move = moves[int(torch.randint(len(moves), (), generator=generator))]
        order[number, places[number]] = places[number][move(len(places[number]), generator)]
    return orders.to(free.device)


def rearrange(tensor: Tensor, orders: Tensor) -> Tensor:
    """Apply orders `[…, tokens]` to a tensor `[…, tokens]` or `[…, tokens, width]`."""
    if tensor.ndim == orders.ndim:
        return tensor.gather(-1, orders)
    return tensor.gather(-2, orders[..., None].expand(*orders.shape, tensor.shape[-1]))


def _places(length: int, count: int, generator: torch.Generator) -> list[int]:
    return torch.randperm(length, generator=generator)[:count].tolist()


def _moved(length: int, start: int, stop: int, to: int) -> Tensor:
    """Take the tokens from start to stop out, and put them before place `to` of the rest."""
    taken = torch.arange(start, stop)
    rest = torch.cat([torch.arange(start), torch.arange(stop, length)])
    return torch.cat([rest[:to], taken, rest[to:]])
