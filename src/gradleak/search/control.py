"""Common to all searches over solutions: what they minimise, when they end, and who follows them.

Used by the genetic, the exhaustive and the surrogate search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from gradleak.exchange import Deadline

Score = Callable[[Tensor], Tensor]
"""Return the losses `[count]`, float64, of solutions `[count, length]`."""

Watch = Callable[[Tensor, float], None]
"""Receive the best solution so far and its loss after every round."""


@dataclass(frozen=True, kw_only=True)
class SearchControl:
    """Decide when a search ends, and follow its progress.

    Attributes:
        tolerance: the search has converged at a loss this small.
        watch: called with the best solution of the start and of every round.
        deadline: when to end at the latest; candidates that were not scored in time have an infinite loss.
    """

    tolerance: float = 0.0
    watch: Watch | None = None
    deadline: Deadline = field(default_factory=Deadline)

    def report(self, solution: Tensor, loss: float) -> None:
        """Pass the best solution so far on to `watch`."""
        if self.watch is not None:
            self.watch(solution, loss)
