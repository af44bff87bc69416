"""History: progress reports of a descent on many victims, and a few snapshots of each for its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradleak.exchange import Reporter, Snapshot
from gradleak.optimisation.guess import Guess, best_texts
from gradleak.targets import Target

SNAPSHOTS = 10


class History:
    """Record a descent: report every step, and take snapshots of every victim at a tenth of the steps.

    Args:
        target: the model.
        victims: the number of victims.
        reporter: called at every step.

    Attributes:
        total: the number of steps that the attack will take at most.
        snapshots: those of each victim, the oldest first.
    """

    def __init__(self, target: Target, victims: int, reporter: Reporter) -> None:
        self.total = 1
        self.snapshots: list[tuple[Snapshot, ...]] = [() for _ in range(victims)]
        self._target, self._reporter = target, reporter

    def record(self, step: int, best: Guess, numbers: Sequence[int]) -> None:
        """Record a step.

        Args:
            step: its number, from 1 to `total`.
            best: the best state of the active victims so far.
            numbers: which victims are active.
        """
        self._reporter(step, self.total, lambda: best_texts(self._target, best)[0])
        if step % max(1, self.total // SNAPSHOTS) == 0:
            for victim, (loss, texts) in zip(numbers, best_texts(self._target, best), strict=True):
                self._add(victim, Snapshot(step, loss, texts))

    def _add(self, victim: int, snapshot: Snapshot) -> None:
        """Add a snapshot; where a later descent begins farther away, keep the loss and texts of the last one."""
        taken = self.snapshots[victim]
        if taken and not snapshot.loss < taken[-1].loss:
            snapshot = replace(taken[-1], step=snapshot.step)
        self.snapshots[victim] = (*taken, snapshot)
