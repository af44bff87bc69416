"""All sequences that are one move away."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.search.moves import moved


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
    # One place further, a move is a swap.
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
    """Return every order that takes one token out and puts it in somewhere else."""
    return _all_runs_moved(length, 1, 1)


def all_block_shifts(length: int) -> Tensor:
    """Return every order that takes several tokens in a row out and puts them in somewhere else."""
    return _all_runs_moved(length, 2, length - 1)


def all_replacements(solution: Tensor, kinds: int) -> Tensor:
    """Return every solution that differs in one place and still holds each kind of token that this one holds.

    Args:
        solution: numbers of kinds of tokens `[length]`.
        kinds: how many kinds there are.
    """
    repeated = torch.bincount(solution, minlength=kinds)[solution] > 1
    places = repeated.nonzero().flatten()
    changed = solution.repeat(len(places) * kinds, 1)
    changed.scatter_(1, places.repeat_interleave(kinds)[:, None], torch.arange(kinds).repeat(len(places))[:, None])
    return changed[(changed != solution).any(dim=1)]


def _all_runs_moved(length: int, shortest: int, longest: int) -> Tensor:
    """Return every order that moves a run of so many tokens."""
    first, last, to = torch.cartesian_prod(*[torch.arange(length)] * 3).view(-1, 3).T
    size = last - first + 1
    chosen = (size >= shortest) & (size <= longest) & (to <= length - size) & (to != first)
    return moved(length, first[chosen], last[chosen], to[chosen])
