"""Lines, facts and tables: with colours on a terminal, plain in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.cli.startup import something_is_printed
from gradleak.files import STDOUT
from gradleak.printable import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SCORE_TITLES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "exact": "exact",
    "token_accuracy": "tokens",
}


class Screen:
    """Prints the output of a command; control characters and bidi marks in it are shown as symbols.

    Args:
        quiet: print the bare result only.
        json_file: where the command writes JSON; if that is standard output, all else goes to standard error.
    """

    def __init__(self, quiet: bool = False, json_file: Path | None = None) -> None:
        from gradleak.cli.output.safe_console import SafeConsole

        self._stream = sys.stderr if json_file == STDOUT else sys.stdout
        # No escape codes in a pipe, even if FORCE_COLOR is set.
        terminal = self._stream.isatty()
        self.console: Console = SafeConsole(
            file=None if self._stream is sys.stdout else self._stream,
            force_terminal=terminal,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self.rich = terminal and not self.console.is_dumb_terminal
        self.quiet = quiet

    def line(self, text: str | Text = "", style: str | None = None) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            self._print(text, style)

    def result(self, text: str) -> None:
        """Print a line, even if quiet."""
        self._print(text)

    def data(self, text: str) -> None:
        """Print data for other programs as it is, even if quiet; its control characters are shown as symbols, too."""
        something_is_printed()
        self._stream.write(visible(text, lines=True))

    def facts(self, rows: Sequence[tuple[str, str | Text]]) -> None:
        """Print names and values in two columns, unless quiet."""
        if self.quiet:
            return
        from rich.table import Table

        if not self.rich:
            width = max((len(name) for name, _ in rows), default=0)
            for name, value in rows:
                self._print(f"{name:<{width}}  {visible(str(value))}")
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        for name, value in rows:
            grid.add_row(name, visible(value) if isinstance(value, str) else value)
        self.console.print(grid)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, unless quiet."""
        if self.quiet:
            return
        rows = [[visible(cell) for cell in row] for row in rows]
        if not self.rich:
            widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
            for row in [headers, *rows]:
                cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
                self._print("  ".join(cells).rstrip())
            return
        from rich import box
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for number, header in enumerate(headers):
            drawn.add_column(header, no_wrap=number == 0, style="bold" if number == 0 else None)
        for row in rows:
            drawn.add_row(*row)
        self.console.print(drawn)

    def overview(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print the facts of a run before it starts, and an empty line."""
        self.facts(rows)
        self.line()

    def _print(self, text: str | Text, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=not self.rich)
