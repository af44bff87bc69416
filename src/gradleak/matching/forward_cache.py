"""A cache of forward passes by token sequence, used by `ClassifierMatcher`.

Candidates of a batch differ in one sequence or two, and a search returns to the same sequences again and again: each
distinct sequence runs once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.hashing import row_hashes

ForwardPass = Callable[[Tensor, Tensor], Tensor]
"""Takes token ids and their mask `[sequences, tokens]`, returns a row for each sequence `[sequences, width]`."""

MAX_CACHE_BYTES = 1 << 30  # the cache is emptied when it grows beyond this


class ForwardCache:
    """Runs a model only on sequences that it has not seen before, recognised by a random 64-bit hash.

    Args:
        run: the forward pass; it is called with distinct sequences in order of length.
    """

    def __init__(self, run: ForwardPass) -> None:
        self._run = run
        self._keys: Tensor | None = None  # sorted
        self._places: Tensor | None = None  # of the keys' rows
        self._rows: Tensor | None = None  # with spare capacity at the end

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the rows `[sequences, width]` of sequences `[sequences, tokens]`."""
        if self._rows is not None and self._rows.nbytes > MAX_CACHE_BYTES:
            self._keys = self._places = self._rows = None
        keys = row_hashes((ids + 1) * mask)
        unknown = self._unknown(keys)
        if len(unknown):
            unknown = unknown[mask[unknown].sum(dim=1).argsort(stable=True)]
            self._add(keys[unknown], self._run(ids[unknown], mask[unknown]))
        assert self._keys is not None
        assert self._places is not None
        assert self._rows is not None
        return self._rows[self._places[torch.searchsorted(self._keys, keys)]]

    def _unknown(self, keys: Tensor) -> Tensor:
        """Return the indices of sequences that are not cached, one index for each distinct sequence."""
        numbers = torch.arange(len(keys), device=keys.device)
        if self._keys is not None:
            nearest = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
            numbers = numbers[self._keys[nearest] != keys]
        different, which = torch.unique(keys[numbers], return_inverse=True)
        return torch.full_like(different, len(keys)).scatter_reduce(0, which, numbers, "amin")

    def _add(self, keys: Tensor, rows: Tensor) -> None:
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
