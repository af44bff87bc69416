"""A cache of scores: searches come back to the same solutions again and again."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.hashing import solution_hashes
from gradleak.search.control import Score


class ScoreCache:
    """Score each different solution once, and look its score up from then on.

    Args:
        score: called with solutions that all differ and are not in the cache.
    """

    def __init__(self, score: Score) -> None:
        self._score = score
        self._keys = torch.empty(0, dtype=torch.long)
        self._values = torch.empty(0, dtype=torch.float64)

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the scores `[count]` of solutions `[count, length]`."""
        unknown = self._unknown(solutions)
        if len(unknown):
            self.add(solutions[unknown], self._score(solutions[unknown]))
        return self._values[torch.searchsorted(self._keys, solution_hashes(solutions))]

    def add(self, solutions: Tensor, scores: Tensor) -> None:
        """Add scores `[count]` that were computed elsewhere."""
        unknown = self._unknown(solutions)
        self._keys, order = torch.cat([self._keys, solution_hashes(solutions[unknown])]).sort()
        self._values = torch.cat([self._values, scores.to("cpu", torch.float64)[unknown]])[order]

    def _unknown(self, solutions: Tensor) -> Tensor:
        """Return the indices of solutions that are not in the cache, one of each set of equal ones."""
        keys, which = torch.unique(solution_hashes(solutions), return_inverse=True)
        one_of_each = torch.empty_like(keys).scatter_(0, which, torch.arange(len(solutions)))
        return one_of_each[~torch.isin(keys, self._keys)]
