"""Padded batches of token ids: what `Target.encode` and `Target.pad` return, and clients and inverters train on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """Token ids of several sequences, padded on the right, and a mask of the positions that hold a token."""

    ids: Tensor  # [sequences, tokens]
    mask: Tensor  # [sequences, tokens], True for tokens, False for padding

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each sequence, special tokens included."""
        return tuple(self.mask.sum(dim=1).tolist())


def pad_rows(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu", *, min_length: int = 0
) -> Tokens:
    """Return rows of token ids of several lengths as one batch, padded on the right to the longest.

    Args:
        rows: the token ids of each sequence; at least one sequence.
        pad_id: the id that fills the rest.
        device: device of the batch.
        min_length: fewest positions of the batch.
    """
    longest = max(min_length, *map(len, rows))
    ids = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[number, : len(row)] = True
    return Tokens(ids.to(device), mask.to(device))
