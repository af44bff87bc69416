"""Random moves on token sequences, many at once. Used by LAMP, GRAB and the surrogate search.

A move is drawn as an order: new[i] = old[order[i]]. Orders apply alike to token ids, to embeddings and to any other
tensor with one entry per token. Places that are not free (special tokens, padding) are never moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Move = Callable[[int, int, torch.Generator], Tensor]
"""Draw orders `[count, length]`, from the length of a sequence, a count and a generator."""


def swap(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Exchange the tokens at two places (LAMP, section 4.3)."""
    orders = torch.arange(length).repeat(count, 1)
    pairs = _places(length, count, generator)[:, :2]
    return orders.scatter(1, pairs, pairs.flip(1))


def move_token(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Move one token to another place."""
    taken, to = _places(length, count, generator)[:, :2].T
    return moved(length, taken, taken, to)


def move_subsequence(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Move a run of tokens to another place."""
    first, last = _places(length, count, generator)[:, :2].sort(dim=1).values.T
    places = length - (last - first)  # where the run can go, its old place included
    to = (torch.rand(count, generator=generator) * places).long()
    return moved(length, first, last, to)


def move_prefix(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Move the beginning to the end."""
    cuts = torch.randint(1, length, (count, 1), generator=generator)
    return (torch.arange(length) + cuts) % length


def shuffle(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Put all tokens in a random order."""
    return _places(length, count, generator)


LAMP_MOVES: tuple[Move, ...] = (swap, move_token, move_subsequence, move_prefix)


def draw_orders(free: Tensor, count: int, moves: Sequence[Move], generator: torch.Generator) -> Tensor:
    """Draw orders for a batch of sequences: each moves the free tokens of one sequence by one of the moves.

    Args:
        free: True where a token may be moved `[sequences, tokens]`.
        count: how many orders to draw.
        moves: chosen from with equal probability.
        generator: source of randomness, on the CPU.

    Returns:
        Orders `[count, sequences, tokens]`, on the device of `free`.
    """
    sequences, tokens = free.shape
    orders = torch.arange(tokens).repeat(count, sequences, 1)
    places = [row.nonzero().flatten() for row in free.cpu()]
    movable = torch.tensor([number for number, row in enumerate(places) if len(row) > 1])
    if len(movable):
        sequence = movable[torch.randint(len(movable), (count,), generator=generator)]
        kind = torch.randint(len(moves), (count,), generator=generator)
        for number in movable.tolist():
            for index, move in enumerate(moves):
                drawn = ((sequence == number) & (kind == index)).nonzero().flatten()
                row = places[number]
                orders[drawn[:, None], number, row] = row[move(len(row), len(drawn), generator)]
    return orders.to(free.device)


def rearrange(tensor: Tensor, orders: Tensor) -> Tensor:
    """Apply orders `[…, tokens]` to a tensor `[…, tokens]` or `[…, tokens, width]`."""
    if tensor.ndim == orders.ndim:
        return tensor.gather(-1, orders)
    return tensor.gather(-2, orders[..., None].expand(*orders.shape, tensor.shape[-1]))


def _places(length: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw random permutations of the places `[count, length]`."""
    return torch.rand(count, length, generator=generator).argsort(dim=1)


def moved(length: int, first: Tensor, last: Tensor, to: Tensor) -> Tensor:
    """Return orders `[count, length]` that move the run `first` to `last` before place `to` of the other tokens."""
    place = torch.arange(length)
    first, last, to = first[:, None], last[:, None], to[:, None]
    taken = (place >= first) & (place <= last)
    rank_among_rest = place - torch.where(place > last, last - first + 1, 0)
    # The run comes after the first `to` of the others; the stable sort keeps its order.
    keys = torch.where(taken, 2 * to - 1, 2 * rank_among_rest)
    return keys.argsort(dim=1, stable=True)
