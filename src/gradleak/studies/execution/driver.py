"""The driver: hand cells to an executor, record their results, and retry those that fail.

Used by `gradleak study run`, which draws the events that a run reports, and by `gradleak audit`, which decides on its
next cells by the results of the last ones (`open_session`).
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gradleak.errors import GradleakError
from gradleak.studies.definition.cells import Cell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.study import Study
from gradleak.studies.execution.events import EventListener, Failed, Finished, Moved, Planned, Started
from gradleak.studies.execution.executors import Executor
from gradleak.studies.execution.lock import only_driver
from gradleak.studies.execution.worker import Job
from gradleak.studies.records.outcome import Failure, Outcome
from gradleak.studies.records.soundness import read_reasons
from gradleak.studies.records.stale import CellRecord, why_stale
from gradleak.studies.records.store import Store
from gradleak.version import __version__

ATTEMPTS = 3


@dataclass(frozen=True)
class FailedCell:
    """A cell that failed and is not tried again."""

    cell: Cell
    error: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a run.

    Attributes:
        cells: number of cells of the study.
        done: number of finished cells, those of earlier runs included.
        fresh: number of cells that this run finished.
        failed: the cells that failed and are not tried again.
        seconds: duration of this run.
    """

    cells: int
    done: int
    fresh: int
    failed: tuple[FailedCell, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run treats another run on the same file, and earlier results.

    Attributes:
        wait: wait for another run on the same file to end, instead of raising an error.
        retry_failed: also try the cells again that failed finally in earlier runs.
        keep_old: keep results of another release of gradleak, and those recorded without hashes.
    """

    wait: bool = False
    retry_failed: bool = False
    keep_old: bool = False


def run_study(
    study: Study,
    path: str | Path,
    *,
    executor: Executor,
    targets: Sequence[str] | None = None,
    listener: EventListener | None = None,
    options: RunOptions | None = None,
) -> Summary:
    """Run the cells of a study that have no valid result yet: one of the same weights, sentences and release.

    Args:
        study: the study.
        path: its file of records, new or from an earlier run.
        executor: runs the cells.
        targets: names of models that replace the study's own.
        listener: called with every event.
        options: what to do about another run on the same file, and about earlier results.

    Raises:
        GradleakError: if the study has no cells, or its file cannot be locked, read or written.
        KeyboardInterrupt: after Ctrl-C; finished cells are recorded in full, all others not at all.
    """
    chosen = options or RunOptions()
    library = Library()
    cells = study.cells(targets, library)
    if not cells:
        raise GradleakError(
            f"study {study.name} has no cells to run; not available yet: {', '.join(study.unavailable)}"
        )
    with open_session(path, executor, library=library, listener=listener, options=chosen) as session:
        session.store.describe(_facts(study))
        return session.run(cells)


@contextmanager
def open_session(
    path: str | Path,
    executor: Executor,
    *,
    library: Library,
    listener: EventListener | None = None,
    options: RunOptions | None = None,
) -> Iterator[Session]:
    """Lock and open a file of records, and yield a session that runs cells in several steps; see `run_study`."""
    chosen = options or RunOptions()
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise GradleakError(f"{path} cannot be written: there is no folder {path.parent}")
    with only_driver(path, wait=chosen.wait), Store(path) as store, ExitStack() as workers:
        if chosen.retry_failed:
            store.forget_failures()
        yield Session(store, library, executor, listener or (lambda event: None), chosen.keep_old, workers)


@dataclass
class Session:
    """A file of records that is held open, and the executor of its cells, whose workers stay from step to step."""

    store: Store
    library: Library
    executor: Executor
    listener: EventListener
    keep_old: bool
    workers: ExitStack
    started: bool = False

    def run(self, cells: Sequence[Cell]) -> Summary:
        """Run those of the cells that have no valid result yet."""
        run = _Run(cells, self.library, self.store, self.executor, self.listener, self.keep_old)
        return run.run(self._start)

    def _start(self) -> None:
        """Start the executor, unless it was."""
        if not self.started:
            self.started = True
            self.workers.enter_context(self.executor)


def _facts(study: Study) -> dict[str, str]:
    """Return what the file of records says about its study."""
    facts = {"name": study.name, "title": study.title, "paper": study.paper or "", "study": study.source}
    return facts | {"version": __version__}


@dataclass
class _Run:
    """The state of one run."""

    cells: Sequence[Cell]
    library: Library
    store: Store
    executor: Executor
    report: EventListener
    keep_old: bool
    waiting: deque[Cell] = field(default_factory=deque)
    running: dict[str, Cell] = field(default_factory=dict)
    failed: dict[str, FailedCell] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)  # by cell: failed attempts so far
    stale: dict[str, list[str]] = field(default_factory=dict)  # by cell: the records that it replaces

    def run(self, start: Callable[[], None]) -> Summary:
        """Plan, then run all waiting cells; `start` starts the executor, if there are any."""
        started = time.monotonic()
        stale = self._plan()
        before = len(self.cells) - len(self.waiting) - len(self.failed)
        if self.waiting:
            start()
        left = self.seconds_left()
        self.report(Planned(len(self.cells), before, len(self.failed), self.executor.slots, left, stale))
        self._run_waiting()
        done = len(self.cells) - len(self.failed)
        return Summary(
            cells=len(self.cells),
            done=done,
            fresh=done - before,
            failed=tuple(self.failed.values()),
            seconds=time.monotonic() - started,
        )

    def _plan(self) -> tuple[tuple[str, int], ...]:
        """Find the cells to run, mark stale records, and return the reasons with the number of finished cells."""
        records: dict[str, list[CellRecord]] = {}
        for record in self.store.cells():
            records.setdefault(record.setting, []).append(record)
        reasons: dict[str, str] = {}
        again: Counter[str] = Counter()
        for cell in self.cells:
            found = None
            for record in records.get(cell.setting, ()):
                why = why_stale(record, cell.hashes or {}, keep_old=self.keep_old)
                if why is None:
                    found = record
                else:
                    reasons[record.id] = why
                    again[why] += record.done
                    self.stale.setdefault(cell.id, []).append(record.id)
            self._enqueue(cell, found)
        # Cells that never failed come first: one that kills its worker must not do so at the start of every run.
        self.waiting = deque(sorted(self.waiting, key=lambda cell: self._attempts(cell)))
        self._mark_stale(reasons, records)
        return tuple((why, count) for why, count in again.most_common() if count)

    def _mark_stale(self, reasons: Mapping[str, str], records: Mapping[str, Sequence[CellRecord]]) -> None:
        """Record why records are stale, and keep the marks of records that belong to no cell of this run."""
        settings = {cell.setting for cell in self.cells}
        others = {record.id for name, some in records.items() if name not in settings for record in some}
        earlier = read_reasons(self.store.meta(), self.store.path)
        kept = {name: why for name, why in earlier.items() if name in others}
        self.store.describe({"stale": json.dumps({**kept, **reasons})})

    def _enqueue(self, cell: Cell, record: CellRecord | None) -> None:
        """Add a cell to the waiting or the failed ones, unless its record is a finished one."""
        if record is None:
            self.waiting.append(cell)
        elif not record.done and record.attempts >= ATTEMPTS:
            self.failed[cell.id] = FailedCell(cell, record.error, record.attempts)
        elif not record.done:
            self.attempts[cell.id] = record.attempts
            self.waiting.append(cell)

    def _run_waiting(self) -> None:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.executor.slots:
                cell = self.waiting.popleft()
                self.running[cell.id] = cell
                self.executor.submit(Job.of(cell, self.library))
                self.report(Started(cell))
            finished, result = self.executor.wait(
                lambda name, progress: self.report(Moved(self.running[name], progress))
            )
            cell = self.running.pop(finished)
            if isinstance(result, Failure):
                self._fail(cell, result)
            else:
                self._finish(cell, result)

    def _finish(self, cell: Cell, outcome: Outcome) -> None:
        self.store.record(cell, outcome, self._attempts(cell), self.stale.get(cell.id, ()))
        self.report(Finished(cell, outcome, self.seconds_left()))

    def _fail(self, cell: Cell, failure: Failure) -> None:
        attempts = self._attempts(cell)
        self.store.record_failure(cell, failure, attempts, self.stale.get(cell.id, ()))
        self.attempts[cell.id] = attempts
        for_good = failure.hopeless or attempts >= ATTEMPTS
        if for_good:
            self.failed[cell.id] = FailedCell(cell, failure.error, attempts)
        else:
            self.waiting.append(cell)
        self.report(Failed(cell, failure.error, attempts, for_good, self.seconds_left()))

    def _attempts(self, cell: Cell) -> int:
        """Return the number of the cell's current attempt, counted from 1."""
        return 1 + self.attempts.get(cell.id, 0)

    def seconds_left(self) -> float | None:
        """Estimate the remaining time from finished cells of the same kind and attack; None without any."""
        left = [*self.waiting, *self.running.values()]
        total = estimate(left, self.store.paces())
        return None if total is None else total / max(1, min(self.executor.slots, len(left)))


def estimate(cells: Iterable[Cell], paces: Mapping[tuple[str, str], tuple[int, float]]) -> float | None:
    """Estimate the seconds that cells take one after the other; None if no cell of their kind has finished.

    An attack without a finished cell is estimated by the mean of its kind.

    Args:
        cells: the cells to run.
        paces: for each kind and attack the number of finished cells and their mean seconds (`Store.paces`).
    """
    total = 0.0
    for cell in cells:
        alike = [paces[cell.pace]] if cell.pace in paces else [p for key, p in paces.items() if key[0] == cell.kind]
        count = sum(number for number, _ in alike)
        if not count:
            return None
        total += sum(number * seconds for number, seconds in alike) / count
    return total
