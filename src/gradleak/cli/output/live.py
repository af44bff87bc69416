"""Progress displays: a live drawing on a terminal, a line at intervals in a pipe, nothing if quiet.

`attack_watch` follows an attack, `progress_line` any other long computation; `study_board` builds on the same parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradleak.cli.output.highlight import matched_tokens

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gradleak.cli.output.screen import Screen
    from gradleak.exchange import Listener, Progress

PLAIN_INTERVAL = 2.0
"""Seconds between two lines in a pipe."""


# --- time ------------------------------------------------------------------------------------------------------------


class Throttle:
    """Limits lines to one every `interval` seconds, the first one included."""

    def __init__(self, interval: float = PLAIN_INTERVAL) -> None:
        self._interval = interval
        self._last = time.monotonic()

    def ready(self) -> bool:
        """Return whether a line is due, and if so start the next interval."""
        now = time.monotonic()
        if now - self._last < self._interval:
            return False
        self._last = now
        return True


def clock(seconds: float) -> str:
    """Return `m:ss`, or `h:mm:ss` from an hour up."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_left(seconds: float | None) -> str:
    """Return an estimate of the time left in words; None is unknown."""
    return "time left unknown" if seconds is None else f"about {clock(seconds)} left"


# --- any computation -------------------------------------------------------------------------------------------------

ShowProgress = Callable[[int, int, str], None]
"""Takes the steps done, the steps in all, and a line of text."""


@contextmanager
def progress_line(screen: Screen) -> Iterator[ShowProgress]:
    """Yield a function that shows progress: as a bar with text, as a line at intervals, or not at all."""
    if screen.quiet:
        yield lambda done, total, text: None
        return
    if not screen.rich:
        throttle = Throttle()
        yield lambda done, total, text: screen.line(text) if throttle.ready() else None
        return
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(BarColumn(), TextColumn("{task.description}", markup=False), console=screen.console, transient=True)
    task = bar.add_task("starting …", total=1)
    with bar:
        yield lambda done, total, text: bar.update(task, total=total, completed=done, description=text)


# --- attacks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunShare:
    """The place of a group of batches in a run.

    Attributes:
        done: batches finished before it.
        size: its own batches.
        count: batches of the run.
        seconds: time that the finished ones took.
    """

    done: int = 0
    size: int = 1
    count: int = 1
    seconds: float = 0.0

    def seconds_left(self, progress: Progress) -> float:
        """Estimate the time left of the whole run: that of the group, and of later batches at the pace so far."""
        whole_group = progress.seconds + progress.seconds_left
        pace = (self.seconds + whole_group) / (self.done + self.size)
        return progress.seconds_left + pace * (self.count - self.done - self.size)


class Watch:
    """Follows an attack without showing anything, and keeps its last progress report."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        self._share = RunShare()

    @contextmanager
    def group(self, title: str, references: Sequence[str] | None, share: RunShare | None = None) -> Iterator[Listener]:
        """Follow the attack on one group of batches.

        Args:
            title: names the group.
            references: the private texts of the group's first batch, whose reconstruction the attack reports.
            share: its place in the run; by default it is the whole run.
        """
        self._begin(share)
        yield self.see

    def _begin(self, share: RunShare | None) -> None:
        self.last, self._share = None, share or RunShare()

    def see(self, progress: Progress) -> None:
        """Take a progress report."""
        self.last = progress


class PlainWatch(Watch):
    """Prints a line when a group begins, and at intervals."""

    def __init__(self, line: Callable[[str], None]) -> None:
        super().__init__()
        self._line = line
        self._throttle = Throttle()

    @contextmanager
    def group(self, title: str, references: Sequence[str] | None, share: RunShare | None = None) -> Iterator[Listener]:
        """Print the title of the group, and follow it."""
        self._line(f"{title} …")
        with super().group(title, references, share) as listener:
            yield listener

    def see(self, progress: Progress) -> None:
        """Print the report if a line is due."""
        super().see(progress)
        if self._throttle.ready():
            self._line(f"{position(progress, self._share)}  {' | '.join(progress.texts)}")


class LiveWatch(Watch):
    """Draws a panel with a bar, the loss, the time left and the current reconstruction."""

    def __init__(self, console: Console, tokenizer: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._console = console
        self._tokenizer = tokenizer
        self._title = ""
        self._references: Sequence[str] | None = None
        self._texts: list[RenderableType] = []

    @contextmanager
    def group(self, title: str, references: Sequence[str] | None, share: RunShare | None = None) -> Iterator[Listener]:
        """Draw the panel while the group is attacked, and erase it then."""
        from rich.live import Live

        self._begin(share)
        self._title, self._references = title, references
        with Live(console=self._console, transient=True, get_renderable=self._draw, refresh_per_second=8):
            yield self.see

    def see(self, progress: Progress) -> None:
        """Colour the texts in this thread: another one draws the panel, and must not use the tokenizer."""
        self._texts = [self._text(text) for text in progress.texts]
        super().see(progress)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        content: RenderableType = Text("starting …", style="dim")
        if self.last is not None:
            head = Table.grid(padding=(0, 2), expand=True)
            head.add_column(ratio=1)
            head.add_column(justify="right", no_wrap=True, style="dim")
            head.add_row(ProgressBar(total=self.last.total, completed=self.last.step), position(self.last, self._share))
            content = Group(head, *self._texts)
        return Panel(content, title=self._title, title_align="left", border_style="cyan")

    def _text(self, text: str) -> RenderableType:
        from rich.text import Text

        if not self._references or not text:
            return Text(text)
        return matched_tokens(self._tokenizer, self._tokenizer(text)["input_ids"], self._references)


def attack_watch(screen: Screen, tokenizer: Any) -> Watch:  # noqa: ANN401
    """Return the watch that suits a screen."""
    if screen.quiet:
        return Watch()
    return LiveWatch(screen.console, tokenizer) if screen.rich else PlainWatch(screen.line)


def position(progress: Progress, share: RunShare) -> str:
    """Return the step, the loss and the time left of the run, in words."""
    left = clock(share.seconds_left(progress))
    return f"step {progress.step}/{progress.total}  loss {progress.loss:.4g}  {left} left"
