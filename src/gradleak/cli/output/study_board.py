"""Progress display of a study: a line for every cell, and on a terminal bars for the running ones."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from gradleak.cli.output.live import time_left
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from gradleak.studies import Event, Outcome
    from gradleak.studies.execution.events import Failed, Finished, Planned


class Board:
    """Counts the cells of a study and prints a line for each that ends.

    Args:
        screen: where to print.
    """

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.cells = 0
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: printed lines stay."""

    def see(self, event: Event) -> None:
        """Print an event of the driver."""
        from gradleak.studies.execution.events import Failed, Finished, Planned

        if isinstance(event, Planned):
            self.cells, self.done = event.cells, event.done
            self.screen.line(_plan(event))
            self.screen.line()
        elif isinstance(event, Finished):
            self.done += 1
            self.screen.line(f"{self._count()} {event.cell.title}: {_found(event)}  {time_left(event.seconds_left)}")
        elif isinstance(event, Failed):
            self.screen.line(f"{self._count()} {event.cell.title}: {_failed(event)}", "red")

    def _count(self) -> str:
        return f"[{self.done:>{len(str(self.cells))}}/{self.cells}]"


class LiveBoard(Board):
    """Adds bars below the lines: one for the study and one for every running cell.

    Args:
        screen: where lines are printed.
        console: where the bars are drawn; the screen's by default.
    """

    def __init__(self, screen: Screen, console: Console | None = None) -> None:
        super().__init__(screen)
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._bars = Progress(
            BarColumn(16),
            TextColumn("{task.fields[where]}", style="dim", markup=False, table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            console=console or screen.console,
            transient=True,
            expand=True,
        )
        self._all = self._bars.add_task("study", total=None, where="")
        self._cells: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Erase the bars."""
        self._bars.stop()

    def see(self, event: Event) -> None:
        """Print an event of the driver and update the bars."""
        from gradleak.studies.execution.events import Moved, Started

        super().see(event)
        if isinstance(event, Started):
            title = event.cell.title
            self._cells[event.cell.id] = self._bars.add_task(title, total=None, where="")
        elif isinstance(event, Moved):
            at = event.progress
            where = f"step {at.step}/{at.total}"
            self._bars.update(self._cells[event.cell.id], total=at.total, completed=at.step, where=where)
        else:
            cell = getattr(event, "cell", None)
            if cell is not None:
                self._bars.remove_task(self._cells.pop(cell.id))
            where = f"{self.done} of {self.cells} cells, {time_left(event.seconds_left)}"
            self._bars.update(self._all, total=self.cells, completed=self.done, where=where)


def _plan(event: Planned) -> str:
    words = f"{plural(event.cells, 'cell')}, {event.done} done"
    if event.failed:
        words += f", {event.failed} failed for good in earlier runs (--retry-failed tries them again)"
    for why, cells in event.stale:
        words += f", {cells} stale and run again ({why})"
    return words if event.done + event.failed == event.cells else f"{words}, {time_left(event.seconds_left)}"


def _found(event: Finished) -> str:
    return f"{_scores(event.outcome)}, {event.outcome.seconds:.1f} s"


def _scores(outcome: Outcome) -> str:
    if outcome.utility is not None:
        mcc = outcome.utility.mcc
        return "trained" if mcc is None else f"MCC {mcc:.2f}"
    if outcome.images:
        return f"PSNR {sum(image.psnr for image in outcome.images) / len(outcome.images):.1f} dB"
    mean = sum(sentence.rouge1 for sentence in outcome.sentences) / max(1, len(outcome.sentences))
    return f"ROUGE-1 {mean:.1f}"


def _failed(event: Failed) -> str:
    again = "for good" if event.for_good else "to be tried again"
    return f"failed {again} (attempt {event.attempts}): {event.error}"
