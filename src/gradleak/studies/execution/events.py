"""Events that a run reports to its listener, from the plan to every finished or failed cell.

Made by the driver; `gradleak study run` draws them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradleak.exchange import Progress
from gradleak.studies.definition.cells import Cell
from gradleak.studies.records.outcome import Outcome


@dataclass(frozen=True)
class Planned:
    """The plan of a run, its first event."""

    cells: int
    done: int
    failed: int  # finally, in earlier runs
    slots: int
    seconds_left: float | None
    stale: tuple[tuple[str, int], ...] = ()  # each reason, and the number of finished cells that run again for it


@dataclass(frozen=True)
class Started:
    """A cell was handed to the executor."""

    cell: Cell


@dataclass(frozen=True)
class Moved:
    """A running cell has made progress."""

    cell: Cell
    progress: Progress


@dataclass(frozen=True)
class Finished:
    """A cell has finished and is recorded."""

    cell: Cell
    outcome: Outcome
    seconds_left: float | None


@dataclass(frozen=True)
class Failed:
    """A cell failed; it is tried again later unless `for_good`."""

    cell: Cell
    error: str
    attempts: int
    for_good: bool
    seconds_left: float | None


Event = Planned | Started | Moved | Finished | Failed
EventListener = Callable[[Event], None]
