"""The time of an audit: what is spent of the budget, and what may still begin.

Time is counted from the seconds in the study's file, not from the clock on the wall: an audit that was killed counts
the same, and makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradleak.assessment.plan import SHORTEST, STARTUP, AuditPlan
from gradleak.assessment.training import Trainings
from gradleak.assessment.trials import TrialResult

SPARE = 0.05
"""Share of the budget that is never planned: loading, drawing, and what is lost between the cells."""

OVERRUN = 1.1
"""An attack looks at its time between two steps, and may take so many times the seconds that it was given."""

BY_EXAMPLE = 4.0
"""Training under DP-SGD, example by example, takes about so many times as long as in batches."""


@dataclass(frozen=True)
class AuditClock:
    """Counts what an audit has spent.

    Attributes:
        budget: seconds for the whole audit.
        startup: seconds of the first look at model and data.
        slots: cells that run side by side.
        clients: clients behind one update.
        plan: seconds for each update.
        results: by name of the setting, in the order in which they were tried; the audit's own.
        trainings: the price of defenses.
    """

    budget: float
    startup: float
    slots: int
    clients: int
    plan: AuditPlan
    results: Mapping[str, TrialResult]
    trainings: Trainings

    @property
    def spent(self) -> float:
        """Seconds of all cells so far, as recorded, shared by the workers."""
        return STARTUP + self.startup + sum(map(self._wall, self.results.values())) + self.trainings.seconds

    def _wall(self, result: TrialResult) -> float:
        updates = len(set(result.batches))
        return result.pace * self.waves(updates) if updates else result.seconds

    def waves(self, updates: int) -> int:
        """Return how often all workers take an update each."""
        return -(-updates // self.slots)

    @property
    def pace(self) -> float:
        """Seconds that an update takes whose text is not simply read."""
        slow = [result.pace for result in self.results.values() if result.sentences and not result.reads_everything]
        return max(self.plan.seconds, sum(slow) / len(slow)) if slow else OVERRUN * self.plan.seconds

    def left(self, reserve: float = 0.0) -> float:
        """Return the seconds that may be spent, with a share of the budget held back."""
        return (1.0 - SPARE - reserve) * self.budget - self.spent

    def affordable(self, updates: int, reserve: float = 0.0) -> bool:
        """Return whether so many hard updates fit into the budget, with a share of it held back."""
        return self.waves(updates) * self.pace <= self.left(reserve)

    def limited(self, seconds: float) -> float:
        """Return the time for an update: no more than is left, and never too little to tell anything."""
        return round(min(seconds, max(SHORTEST, self.left() / OVERRUN)), 1)

    def trainable(self, reserve: float = 0.0, *, by_example: bool = False) -> bool:
        """Return whether another training fits into the budget."""
        pace = self.trainings.pace or self.plan.training
        return pace * (BY_EXAMPLE if by_example else 1.0) <= self.left(reserve)
