"""The driver: hands cells out, writes down what comes back, and goes on whatever happens to one of them."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from gradleak.errors import GradleakError
from gradleak.exchange import Progress
from gradleak.studies.definition.cells import Cell
from gradleak.studies.definition.study import Library, Study
from gradleak.studies.execution.executors import Executor
from gradleak.studies.execution.lock import only_driver
from gradleak.studies.execution.worker import Job
from gradleak.studies.records.outcome import Failure, Outcome
from gradleak.studies.records.stale import Recorded, why_stale
from gradleak.studies.records.store import Attempted, Store
from gradleak.version import __version__

ATTEMPTS = 3


@dataclass(frozen=True)
class Planned:
    """What is going to happen: the first event of a run."""

    cells: int
    done: int
    failed: int  # for good, in earlier runs
    slots: int
    seconds_left: float | None
    stale: tuple[tuple[str, int], ...] = ()  # why, and how many finished cells are run again for it


@dataclass(frozen=True)
class Started:
    """A cell was handed out."""

    cell: Cell


@dataclass(frozen=True)
class Moved:
    """A cell is under way."""

    cell: Cell
    progress: Progress


@dataclass(frozen=True)
class Finished:
    """A cell is done and written down."""

    cell: Cell
    outcome: Outcome
    seconds_left: float | None


@dataclass(frozen=True)
class Failed:
    """A cell failed; unless for good, it is tried again later."""

    cell: Cell
    error: str
    attempts: int
    for_good: bool
    seconds_left: float | None


Event = Planned | Started | Moved | Finished | Failed
EventListener = Callable[[Event], None]


@dataclass(frozen=True)
class FailedCell:
    """A cell that failed for good."""

    cell: Cell
    error: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run ended.

    Attributes:
        cells: number of cells of the study.
        done: how many of them are done, those of earlier runs included.
        fresh: how many were done in this run.
        failed: those that failed for good.
        seconds: how long this run took.
    """

    cells: int
    done: int
    fresh: int
    failed: tuple[FailedCell, ...]
    seconds: float


def run_study(
    study: Study,
    path: str | Path,
    *,
    executor: Executor,
    targets: Sequence[str] | None = None,
    listener: EventListener | None = None,
    wait: bool = False,
    retry_failed: bool = False,
    keep_old: bool = False,
) -> Summary:
    """Run what is left of a study; what has finished on the same weights and sentences is not run again.

    Args:
        study: the study.
        path: its file of records, new or from an earlier run.
        executor: where cells run.
        targets: names of models to take in place of the study's own.
        listener: called with what happens.
        wait: wait for another run on the same file to end, instead of refusing.
        retry_failed: also try again what failed for good.
        keep_old: keep what another release of gradleak has finished, and what was recorded without hashes.

    Raises:
        GradleakError: with one line on what does not fit.
        KeyboardInterrupt: after Ctrl-C; every finished cell is in the file, and no half of another.
    """
    library = Library()
    cells = study.cells(targets, library)
    if not cells:
        raise GradleakError(
            f"study {study.name} has no cells to run; not available yet: {', '.join(study.unavailable)}"
        )
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise GradleakError(f"{path} cannot be written: there is no folder {path.parent}")
    with only_driver(path, wait=wait), Store(path) as store:
        store.describe(_facts(study))
        if retry_failed:
            store.forget_failures()
        return _Run(cells, library, store, executor, listener or (lambda event: None), keep_old).go()


def _facts(study: Study) -> dict[str, str]:
    facts = {"name": study.name, "title": study.title, "paper": study.paper or "", "study": study.source}
    return facts | {"version": __version__}


@dataclass
class _Run:
    """One run of the driver."""

    cells: Sequence[Cell]
    library: Library
    store: Store
    executor: Executor
    tell: EventListener
    keep_old: bool = False
    waiting: deque[Cell] = field(default_factory=deque)
    running: dict[str, Cell] = field(default_factory=dict)
    failed: dict[str, FailedCell] = field(default_factory=dict)
    attempted: dict[str, Attempted] = field(default_factory=dict)
    stale: dict[str, list[str]] = field(default_factory=dict)  # by cell: the records that it takes the place of

    def go(self) -> Summary:
        started = time.monotonic()
        stale = self._sort()
        before = len(self.cells) - len(self.waiting) - len(self.failed)
        with self.executor if self.waiting else nullcontext():
            left = self.seconds_left()
            self.tell(Planned(len(self.cells), before, len(self.failed), self.executor.slots, left, stale))
            self._work()
        done = len(self.cells) - len(self.failed)
        return Summary(
            cells=len(self.cells),
            done=done,
            fresh=done - before,
            failed=tuple(self.failed.values()),
            seconds=time.monotonic() - started,
        )

    def _sort(self) -> tuple[tuple[str, int], ...]:
        """Tell what is left from what is done, mark what is stale, and return why, with how many finished cells."""
        records: dict[str, list[Recorded]] = {}
        for record in self.store.recorded():
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
            self._place(cell, found)
        # What has never failed comes first: a cell that ends its worker must not do so at the start of every run.
        self.waiting = deque(sorted(self.waiting, key=lambda cell: self._attempts(cell)))
        settings = {cell.setting for cell in self.cells}
        others = {record.id for name, some in records.items() if name not in settings for record in some}
        earlier = json.loads(self.store.meta().get("stale", "{}"))
        kept = {name: why for name, why in earlier.items() if name in others}
        self.store.describe({"stale": json.dumps(kept | reasons)})
        return tuple((why, count) for why, count in again.most_common() if count)

    def _place(self, cell: Cell, record: Recorded | None) -> None:
        if record is None:
            self.waiting.append(cell)
        elif not record.done and record.attempts >= ATTEMPTS:
            self.failed[cell.id] = FailedCell(cell, record.error, record.attempts)
        elif not record.done:
            self.attempted[cell.id] = Attempted(record.attempts, record.error)
            self.waiting.append(cell)

    def _work(self) -> None:
        while self.waiting or self.running:
            while self.waiting and len(self.running) < self.executor.slots:
                cell = self.waiting.popleft()
                self.running[cell.id] = cell
                self.executor.submit(Job.of(cell, self.library))
                self.tell(Started(cell))
            number, result = self.executor.wait(lambda name, progress: self.tell(Moved(self.running[name], progress)))
            cell = self.running.pop(number)
            if isinstance(result, Failure):
                self._fail(cell, result)
            else:
                self._finish(cell, result)

    def _finish(self, cell: Cell, outcome: Outcome) -> None:
        self.store.record(cell, outcome, self._attempts(cell), self.stale.get(cell.id, ()))
        self.tell(Finished(cell, outcome, self.seconds_left()))

    def _fail(self, cell: Cell, failure: Failure) -> None:
        attempts = self._attempts(cell)
        self.store.record_failure(cell, failure, attempts, self.stale.get(cell.id, ()))
        self.attempted[cell.id] = Attempted(attempts, failure.error)
        for_good = failure.hopeless or attempts >= ATTEMPTS
        if for_good:
            self.failed[cell.id] = FailedCell(cell, failure.error, attempts)
        else:
            self.waiting.append(cell)
        self.tell(Failed(cell, failure.error, attempts, for_good, self.seconds_left()))

    def _attempts(self, cell: Cell) -> int:
        earlier = self.attempted.get(cell.id)
        return 1 + (earlier.attempts if earlier else 0)

    def seconds_left(self) -> float | None:
        """Estimate from finished cells of the same kind and attack; None if there are none at all."""
        left = [*self.waiting, *self.running.values()]
        total = estimate(left, self.store.paces())
        return None if total is None else total / max(1, min(self.executor.slots, len(left)))


def estimate(cells: Iterable[Cell], paces: Mapping[tuple[str, str], tuple[int, float]]) -> float | None:
    """Return how many seconds cells take one after the other; None if nothing like them has finished yet.

    An attack that has not finished a cell is taken to be as fast as the others of its kind.
    """
    total = 0.0
    for cell in cells:
        alike = [paces[cell.pace]] if cell.pace in paces else [p for key, p in paces.items() if key[0] == cell.kind]
        count = sum(number for number, _ in alike)
        if not count:
            return None
        total += sum(number * seconds for number, seconds in alike) / count
    return total
