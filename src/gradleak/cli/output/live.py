"""Progress displays: a live drawing on a terminal, a line at intervals in a pipe, nothing if quiet.

`attack_watch` follows an attack, `progress_line` any other long computation; `study_board` builds on the same parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

    bar = Progress(BarColumn(), TextColumn("{task.description}"), console=screen.console, transient=True)
    task = bar.add_task("starting …", total=1)
    with bar:
        yield lambda done, total, text: bar.update(task, total=total, completed=done, description=text)


# --- attacks ---------------------------------------------------------------------------------------------------------


class Watch:
    """Follows an attack without showing anything, and keeps its last progress report."""

    def __init__(self) -> None:
        self.last: Progress | None = None

    @contextmanager
    def group(self, title: str, references: Sequence[str] | None) -> Iterator[Listener]:
        """Follow the attack on one group of batches.

        Args:
            title: names the group.
            references: the private texts of the group's first batch, whose reconstruction the attack reports.
        """
        self.last = None
        yield self.see

    def see(self, progress: Progress) -> None:
        """Take a progress report."""
        self.last = progress


class PlainWatch(Watch):
    """Prints a line at intervals."""

    def __init__(self, line: Callable[[str], None]) -> None:
        super().__init__()
        self._line = line
        self._throttle = Throttle()

    def see(self, progress: Progress) -> None:
        """Print the report if a line is due."""
        super().see(progress)
        if self._throttle.ready():
            self._line(f"{position(progress)}  {' | '.join(progress.texts)}")


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
    def group(self, title: str, references: Sequence[str] | None) -> Iterator[Listener]:
        """Draw the panel while the group is attacked, and erase it then."""
        from rich.live import Live

        self.last, self._title, self._references = None, title, references
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
            head.add_row(ProgressBar(total=self.last.total, completed=self.last.step), position(self.last))
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


def position(progress: Progress) -> str:
    """Return the step, the loss and the time left, in words."""
    return f"step {progress.step}/{progress.total}  loss {progress.loss:.4g}  {clock(progress.seconds_left)} left"
