"""Run the trials of an audit: update by update, while there is time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gradleak.assessment.clock import OVERRUN, AuditClock
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.subject import Subject
from gradleak.assessment.trials import Trial, TrialResult, collect
from gradleak.studies.definition.cells import AttackCell
from gradleak.studies.definition.library import Library
from gradleak.studies.execution.driver import Session

OnTrial = Callable[[Trial, TrialResult | None], None]
"""Called before a trial, and after it with its result."""


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials and keeps their results.

    Attributes:
        request: what is audited.
        subject: model and data.
        session: runs cells.
        library: datasets and hashes.
        clock: what is spent of the budget.
        results: by name of the setting, in the order in which they were tried.
        tell: called before and after each trial.
    """

    request: AuditRequest
    subject: Subject
    session: Session
    library: Library
    clock: AuditClock
    results: dict[str, TrialResult]
    tell: OnTrial

    def run(self, trial: Trial, until: float = math.inf, *, to_the_end: bool = True) -> TrialResult:
        """Run a trial, and keep its result in place of one with fewer sentences.

        Its updates are attacked as many at a time as there are workers, while there is time for more.

        Args:
            trial: the setting.
            until: seconds of the audit after which no further updates are begun.
            to_the_end: attack further updates although one that was read has decided that the setting leaks.
        """
        known = self.results.get(trial.name)
        if known is not None and (known.trial.sentences >= trial.sentences or known.error is not None):
            return known
        # An update that was attacked before is not attacked again: it had as much time as those that follow.
        seconds = self.clock.limited(trial.seconds) if known is None else known.trial.seconds
        trial = replace(trial, seconds=seconds)
        self.tell(trial, None)
        cells = trial.cells(self.request, self.subject, self.library)
        step, slots = trial.sentences // len(cells), self.session.executor.slots
        done = 0 if known is None else known.trial.sentences // step
        result = known
        while done < len(cells) and (result is None or self._goes_on(result, seconds, until)):
            done = min(len(cells), (done // slots + 1) * slots)
            result = self._attacked(replace(trial, sentences=done * step), cells[:done])
            if not to_the_end and result.exact_long(self.request.line.words):
                break
        assert result is not None
        self.tell(trial, result)
        return result

    def _goes_on(self, result: TrialResult, seconds: float, until: float) -> bool:
        """Return whether there is time for further updates of a trial."""
        within = self.clock.spent + result.pace <= until
        return result.error is None and within and max(OVERRUN * seconds, result.pace) <= self.clock.left()

    def _attacked(self, trial: Trial, cells: list[AttackCell]) -> TrialResult:
        """Attack the updates of a trial that were not yet, and count the time."""
        before = self.clock.spent
        summary = self.session.run(cells)
        errors = {failed.cell.id: failed.error for failed in summary.failed}
        result = self.results[trial.name] = collect(trial, cells, self.session.store, errors)
        counted = self.clock.spent - before
        self.clock.lost.pass_step(f"{trial.name}, {len(cells)} updates", summary.seconds - counted)
        return result
