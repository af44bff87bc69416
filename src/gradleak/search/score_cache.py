"""Scores that are computed once: a search comes back to the same solutions again and again."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from gradleak.search.genetic import Score


class Remembered:
    """A score that asks another only about solutions it has not seen before.

    Solutions are told apart by a random 64-bit hash: among a million, two collide with a chance of 1 in 30 million.

    Args:
        score: what is asked; called with solutions that all differ.
    """

    def __init__(self, score: Score) -> None:
        self.asked = 0
        self._score = score
        self._keys = torch.empty(0, dtype=torch.long)
        self._values = torch.empty(0, dtype=torch.float64)

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the scores `[count]` of solutions `[count, length]`."""
        unknown = self._unknown(solutions)
        if len(unknown):
            self.asked += len(unknown)
            self.note(solutions[unknown], self._score(solutions[unknown]))
        return self._values[torch.searchsorted(self._keys, hashes(solutions))]

    def note(self, solutions: Tensor, scores: Tensor) -> None:
        """Remember scores that came about elsewhere."""
        unknown = self._unknown(solutions)
        self._keys, order = torch.cat([self._keys, hashes(solutions[unknown])]).sort()
        self._values = torch.cat([self._values, scores.to("cpu", torch.float64)[unknown]])[order]

    def _unknown(self, solutions: Tensor) -> Tensor:
        """Return the numbers of solutions that are not remembered, of equal ones one."""
        keys, which = torch.unique(hashes(solutions), return_inverse=True)
        one_of_each = torch.empty_like(keys).scatter_(0, which, torch.arange(len(solutions)))
        return one_of_each[~torch.isin(keys, self._keys)]


def hashes(solutions: Tensor) -> Tensor:
    """Return a number for each solution `[count, length]`: its entries times fixed random factors, modulo 2⁶⁴."""
    return (solutions * _factors(solutions.shape[1])).sum(dim=1)


@cache
def _factors(length: int) -> Tensor:
    return torch.randint(-(2**62), 2**62, (length,), generator=torch.Generator().manual_seed(length)) * 2 + 1
