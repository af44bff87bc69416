"""Exhaustive neighbourhoods: all sequences that are one move away. Used by FET, EDR, LAMP and sieve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from gradleak.search.moves import moved

# Entries of neighbours that are held in memory at once: a long text has millions of neighbours.
MOST_NUMBERS = 1 << 22


def neighbour_orders(free: Tensor) -> Tensor:
    """Return every order of a sequence that swaps two of its tokens, or moves one to another place.

    Args:
        free: True where a token may be moved `[tokens]`.

    Returns:
        Orders `[neighbours, tokens]`, the present order first, no order twice; on the device of `free`.
    """
    places = free.cpu().nonzero().flatten()
    length = len(places)
    number = torch.arange(length)
    # A move to the next place is a swap.
    first, to = ((number[:, None] - number).abs() > 1).nonzero().T
    moves = torch.cat([number[None], all_swaps(length), moved(length, first, first, to)])
    orders = torch.arange(len(free)).repeat(len(moves), 1)
    orders[:, places] = places[moves]
    return orders.to(free.device)


def all_swaps(length: int) -> Tensor:
    """Return every order that exchanges two places `[length · (length − 1) / 2, length]`."""
    pairs = torch.combinations(torch.arange(length), 2)
    orders = torch.arange(length).repeat(len(pairs), 1)
    return orders.scatter(1, pairs, pairs.flip(1))


def all_shifts(length: int) -> Tensor:
    """Return every order that moves one token to another place."""
    return _all_runs_moved(length, 1, 1)


def all_block_shifts(length: int) -> Tensor:
    """Return every order that moves a run of two or more tokens to another place."""
    return _all_runs_moved(length, 2, length - 1)


def all_replacements(solution: Tensor, kinds: int) -> Tensor:
    """Return every solution that differs in one place and still holds each of the tokens that this one holds.

    Args:
        solution: indices of tokens `[length]`.
        kinds: how many different tokens there are.
    """
    repeated = torch.bincount(solution, minlength=kinds)[solution] > 1
    places = repeated.nonzero().flatten()
    changed = solution.repeat(len(places) * kinds, 1)
    changed.scatter_(1, places.repeat_interleave(kinds)[:, None], torch.arange(kinds).repeat(len(places))[:, None])
    return changed[(changed != solution).any(dim=1)]


def shifts(length: int) -> Iterator[Tensor]:
    """Yield the orders of `all_shifts` in parts."""
    return _runs_moved(length, 1, 1)


def block_shifts(length: int) -> Iterator[Tensor]:
    """Yield the orders of `all_block_shifts` in parts."""
    return _runs_moved(length, 2, length - 1)


def in_parts(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """Join or split tensors `[count, length]` to parts of at most `MOST_NUMBERS` entries."""
    kept: list[Tensor] = []
    for part in parts:
        if kept and sum(one.numel() for one in kept) + part.numel() > MOST_NUMBERS:
            yield torch.cat(kept)
            kept = []
        *whole, rest = torch.split(part, max(1, MOST_NUMBERS // part.shape[1]))
        yield from whole
        kept.append(rest)
    if kept:
        yield torch.cat(kept)


def _all_runs_moved(length: int, shortest: int, longest: int) -> Tensor:
    """Return every order that moves a run of `shortest` to `longest` tokens."""
    return torch.cat([torch.arange(length)[None][:0], *_runs_moved(length, shortest, longest)])


def _runs_moved(length: int, shortest: int, longest: int) -> Iterator[Tensor]:
    """Yield every order that moves a run of `shortest` to `longest` tokens, in parts."""
    places = torch.arange(length)
    for starts in torch.split(places, max(1, MOST_NUMBERS // length**2)):
        first, last, to = torch.cartesian_prod(starts, places, places).view(-1, 3).T
        size = last - first + 1
        chosen = (size >= shortest) & (size <= longest) & (to <= length - size) & (to != first)
        for run in torch.split(torch.stack([first, last, to])[:, chosen], max(1, MOST_NUMBERS // length), dim=1):
            yield moved(length, *run)
