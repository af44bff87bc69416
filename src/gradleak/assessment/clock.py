"""The time of an audit: what is spent of the budget, and what may still begin.

Time is counted from the seconds in the study's file, not from the clock on the wall: an audit that was killed counts
the same, and makes the same decisions. What passes outside cells, while workers start or the machine is busy with
other things, is measured once and kept in the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradleak.assessment.plan import SHORTEST, STARTUP, AuditPlan
from gradleak.assessment.training import Trainings
from gradleak.assessment.trials import TrialResult
from gradleak.errors import GradleakError
from gradleak.studies.records.soundness import read_object
from gradleak.studies.records.store import Store

SPARE = 0.05
"""Share of the budget that is never planned: loading, drawing, and what is lost between the cells."""

OVERRUN = 1.1
"""An attack looks at its time between two steps, and may take so many times the seconds that it was given."""

BY_EXAMPLE = 4.0
"""Training under DP-SGD, example by example, takes about so many times as long as in batches."""


LOST = "audit: seconds outside cells"
"""Name of the fact in study.db that holds them, by step."""


@dataclass
class LostTime:
    """Seconds outside cells, by step of the audit.

    Attributes:
        store: the study's file, which keeps them for a later run.
        passed: of the steps of this run so far.
        known: of all steps of earlier runs.
    """

    store: Store
    passed: dict[str, float] = field(default_factory=dict)
    known: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = self.store.meta().get(LOST)
        if kept is not None:
            self.known = read_object(kept, self.store.path, "the audit's clock", {str: (int, float)})
        if min(self.known.values(), default=0.0) < 0:
            raise GradleakError(f"{self.store.path} is damaged: the audit's clock went backwards")

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return sum(self.passed.values())

    def pass_step(self, step: str, seconds: float) -> None:
        """Count a step: as an earlier run has measured it, or else as this one did."""
        if step not in self.known:
            self.known[step] = round(max(0.0, seconds), 2)
            self.store.describe({LOST: json.dumps(self.known)})
        self.passed[step] = self.known[step]


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
        lost: seconds outside cells.
    """

    budget: float
    startup: float
    slots: int
    clients: int
    plan: AuditPlan
    results: Mapping[str, TrialResult]
    trainings: Trainings
    lost: LostTime

    @property
    def spent(self) -> float:
        """Seconds of all cells so far, as recorded, shared by the workers, and of what was between them."""
        attacks = sum(map(self._wall, self.results.values()))
        return STARTUP + self.startup + attacks + self.trainings.seconds + self.lost.seconds

    def _wall(self, result: TrialResult) -> float:
        updates = len(set(result.batches))
        return result.pace * self.waves(updates) if updates else result.seconds

    def waves(self, updates: int) -> int:
        """Return how often all workers take an update each."""
        return -(-updates // self.slots)

    def pace(self, seconds: float) -> float:
        """Return the time that an update takes which is given so many seconds, and whose text is not simply read."""
        slow = [result for result in self.results.values() if result.sentences and not result.reads_everything]
        overrun = [max(1.0, result.pace / result.trial.seconds) for result in slow]
        return seconds * (sum(overrun) / len(overrun) if overrun else OVERRUN)

    def left(self, reserve: float = 0.0) -> float:
        """Return the seconds that may be spent, with a share of the budget held back."""
        return (1.0 - SPARE - reserve) * self.budget - self.spent

    def affordable(self, updates: int, seconds: float, reserve: float = 0.0) -> bool:
        """Return whether so many hard updates of so many seconds each fit, with a share of the budget held back."""
        return self.waves(updates) * self.pace(seconds) <= self.left(reserve)

    def limited(self, seconds: float) -> float:
        """Return the time for an update: no more than is left, and never too little to tell anything."""
        return round(min(seconds, max(SHORTEST, self.left() / OVERRUN)), 1)

    def trainable(self, reserve: float = 0.0, *, by_example: bool = False) -> bool:
        """Return whether another training fits into the budget."""
        pace = self.trainings.pace or self.plan.training
        return pace * (BY_EXAMPLE if by_example else 1.0) <= self.left(reserve)
