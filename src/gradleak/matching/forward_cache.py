"""What a model makes of token sequences, each of which runs once.

Candidates of a batch differ in one sequence or two, and a search comes back to the same sequences again and again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Run = Callable[[Tensor, Tensor], Tensor]
"""Takes token ids and their mask `[sequences, tokens]`, gives a row for each sequence `[sequences, width]`."""

MOST_BYTES = 1 << 30  # when so much is remembered, all is forgotten


class Sequences:
    """Asks a model only about sequences that it has not seen before.

    Sequences are told apart by a random 64-bit hash: among a million, two collide with a chance of 1 in 30 million.

    Args:
        run: what is asked, about sequences that all differ, in order of their length.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._keys: Tensor | None = None  # sorted
        self._places: Tensor | None = None  # of the keys' rows
        self._rows: Tensor | None = None  # with room for more at the end

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the rows `[sequences, width]` of sequences `[sequences, tokens]`."""
        if self._rows is not None and self._rows.nbytes > MOST_BYTES:
            self._keys = self._places = self._rows = None
        keys = _hashes(ids, mask)
        unknown = self._unknown(keys)
        if len(unknown):
            unknown = unknown[mask[unknown].sum(dim=1).argsort(stable=True)]
            self._remember(keys[unknown], self._run(ids[unknown], mask[unknown]))
        assert self._keys is not None
        assert self._places is not None
        assert self._rows is not None
        return self._rows[self._places[torch.searchsorted(self._keys, keys)]]

    def _unknown(self, keys: Tensor) -> Tensor:
        """Return the numbers of sequences that are not remembered, of equal ones one."""
        numbers = torch.arange(len(keys), device=keys.device)
        if self._keys is not None:
            nearest = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
            numbers = numbers[self._keys[nearest] != keys]
        different, which = torch.unique(keys[numbers], return_inverse=True)
        return torch.full_like(different, len(keys)).scatter_reduce(0, which, numbers, "amin")

    def _remember(self, keys: Tensor, rows: Tensor) -> None:
        if self._keys is None or self._places is None or self._rows is None:
            self._keys, self._places, self._rows = keys[:0], keys[:0], rows[:0]
        known, count = len(self._keys), len(self._keys) + len(keys)
        if count > len(self._rows):
            grown = rows.new_empty(2 * count, rows.shape[1])
            grown[:known] = self._rows[:known]
            self._rows = grown
        self._rows[known:count] = rows
        self._keys, order = torch.cat([self._keys, keys]).sort()
        self._places = torch.cat([self._places, torch.arange(known, count, device=keys.device)])[order]


def _hashes(ids: Tensor, mask: Tensor) -> Tensor:
    """Return a number for each sequence: its tokens times fixed random factors, modulo 2⁶⁴."""
    stream = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (ids.shape[1],), generator=stream) * 2 + 1
    return ((ids + 1) * mask * factors.to(ids.device)).sum(dim=1)
