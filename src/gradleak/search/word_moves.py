"""Moves of whole blocks of tokens (a word and its pieces), for many sequences at once and without a loop. Used by EDR.

A sequence of tokens is cut into blocks; the *rank* of a token is the number of its block. A move changes ranks, and
sorting the tokens by rank applies it, whatever the sizes of the blocks. There may be any leading dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ranks_of(begins: Tensor) -> Tensor:
    """Return the number of each token's block `[…, tokens]`, from a mask of the tokens that begin one."""
    return begins.long().cumsum(dim=-1)


def swap_blocks(ranks: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Exchange two blocks; `first` and `second` are their ranks `[…]`."""
    first, second = first[..., None], second[..., None]
    return torch.where(ranks == first, second, torch.where(ranks == second, first, ranks))


def insert_block(ranks: Tensor, taken: Tensor, to: Tensor) -> Tensor:
    """Move one block to where another one is; those in between move up by one."""
    taken, to = taken[..., None], to[..., None]
    between = torch.where(taken < to, (ranks > taken) & (ranks <= to), (ranks >= to) & (ranks < taken))
    return torch.where(ranks == taken, to, ranks - between * (to - taken).sign())


def reverse_blocks(ranks: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Reverse the order of all blocks from one to another."""
    first, last = torch.minimum(one, other)[..., None], torch.maximum(one, other)[..., None]
    return torch.where((ranks >= first) & (ranks <= last), first + last - ranks, ranks)


BLOCK_MOVES = (swap_blocks, insert_block, reverse_blocks)


def shuffle_blocks(ranks: Tensor, keys: Tensor) -> Tensor:
    """Give blocks a random order: the rank of a block becomes one of the random keys `[…, more than blocks]`."""
    return keys.gather(-1, ranks)


def in_order(tokens: Tensor, ranks: Tensor) -> Tensor:
    """Return the tokens `[…, tokens]` sorted by their ranks; within a block their order is kept."""
    return tokens.gather(-1, ranks.argsort(dim=-1, stable=True))
