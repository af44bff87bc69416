"""Moves of whole blocks of tokens (a word and its pieces), for many sequences at once and without a loop.

A sequence of tokens is cut into blocks; each token has its block's number as its *rank*. A move gives ranks new values,
and sorting the tokens by them carries it out, whatever the blocks' sizes. Leading dimensions are any.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ranks_of(begins: Tensor) -> Tensor:
    """Return the number of each token's block `[…, tokens]`, from where blocks begin."""
    return begins.long().cumsum(dim=-1)


def swap_blocks(ranks: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Exchange two blocks; `first` and `second` are their ranks `[…]`."""
    first, second = first[..., None], second[..., None]
    return torch.where(ranks == first, second, torch.where(ranks == second, first, ranks))


def insert_block(ranks: Tensor, taken: Tensor, to: Tensor) -> Tensor:
    """Take one block out and put it where another one is; those in between close up."""
    taken, to = taken[..., None], to[..., None]
    between = torch.where(taken < to, (ranks > taken) & (ranks <= to), (ranks >= to) & (ranks < taken))
    return torch.where(ranks == taken, to, ranks - between * (to - taken).sign())


def reverse_blocks(ranks: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Put all blocks from one to another in the opposite order."""
    first, last = torch.minimum(one, other)[..., None], torch.maximum(one, other)[..., None]
    return torch.where((ranks >= first) & (ranks <= last), first + last - ranks, ranks)


BLOCK_MOVES = (swap_blocks, insert_block, reverse_blocks)


def shuffle_blocks(ranks: Tensor, keys: Tensor) -> Tensor:
    """Put all blocks in a random order: that of the keys `[…, more than blocks]`, of which each block takes one."""
    return keys.gather(-1, ranks)


def in_order(tokens: Tensor, ranks: Tensor) -> Tensor:
    """Return the tokens `[…, tokens]` sorted by their ranks; those of one block stay as they are."""
    return tokens.gather(-1, ranks.argsort(dim=-1, stable=True))
