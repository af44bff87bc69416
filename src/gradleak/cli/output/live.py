"""What is shown while an attack runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradleak.cli.output.highlight import matched_tokens

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gradleak.exchange import Listener, Progress

PLAIN_INTERVAL = 2.0


class Watch:
    """Follows an attack in silence, and remembers where it was last seen."""

    def __init__(self) -> None:
        self.last: Progress | None = None

    @contextmanager
    def group(self, title: str, references: Sequence[str] | None) -> Iterator[Listener]:
        """Follow the attack on one group of batches.

        Args:
            title: what is attacked.
            references: the truth of the group's first batch, the one whose text the attack reports.
        """
        self.last = None
        yield self.see

    def see(self, progress: Progress) -> None:
        """Take a report."""
        self.last = progress


class PlainWatch(Watch):
    """Prints a line now and then."""

    def __init__(self, line: Callable[[str], None]) -> None:
        super().__init__()
        self._line = line
        self._printed = time.monotonic()

    def see(self, progress: Progress) -> None:
        """Print if the last line is old enough."""
        super().see(progress)
        now = time.monotonic()
        if now - self._printed >= PLAIN_INTERVAL:
            self._printed = now
            self._line(f"{position(progress)}  {' | '.join(progress.texts)}")


class LiveWatch(Watch):
    """Draws a panel that changes: a bar, the loss, the time left, and the text as it forms."""

    def __init__(self, console: Console, tokenizer: Any) -> None:  # noqa: ANN401
        super().__init__()
        self._console = console
        self._tokenizer = tokenizer
        self._title = ""
        self._references: Sequence[str] | None = None
        self._texts: list[RenderableType] = []

    @contextmanager
    def group(self, title: str, references: Sequence[str] | None) -> Iterator[Listener]:
        """Draw while the group is attacked; then the panel goes and the results take its place."""
        from rich.live import Live

        self.last, self._title, self._references = None, title, references
        with Live(console=self._console, transient=True, get_renderable=self._draw, refresh_per_second=8):
            yield self.see

    def see(self, progress: Progress) -> None:
        """Colour the text here: the panel is drawn by another thread, which must not use the tokenizer."""
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


def position(progress: Progress) -> str:
    """Return where a run is, in words."""
    return f"step {progress.step}/{progress.total}  loss {progress.loss:.4g}  {clock(progress.seconds_left)} left"


def clock(seconds: float) -> str:
    """Return `m:ss`, or `h:mm:ss` from an hour up."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
