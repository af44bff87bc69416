"""What the user sees: colours and boxes on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradleak.cli.output.highlight import legend, matched_tokens
from gradleak.cli.output.wording import plural, score_remarks

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradleak.cli.output.live import Watch
    from gradleak.cli.running import Outcome
    from gradleak.exchange import Progress

SCORE_TITLES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "exact": "exact",
    "token_accuracy": "tokens",
}


class Screen:
    """Where a command draws.

    Args:
        quiet: print the bare result only.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console

        # A pipe is no terminal, whatever FORCE_COLOR says: its reader must find no escape codes.
        terminal = sys.stdout.isatty()
        self.console: Console = Console(force_terminal=terminal, markup=False, highlight=False, emoji=False)
        self.rich = terminal and not self.console.is_dumb_terminal
        self.quiet = quiet

    def line(self, text: str | Text = "", style: str | None = None) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            self._print(text, style)

    def result(self, text: str) -> None:
        """Print a line that even a quiet command prints."""
        self._print(text)

    def facts(self, rows: Sequence[tuple[str, str | Text]]) -> None:
        """Print names and values below each other."""
        if self.quiet:
            return
        from rich.table import Table

        if not self.rich:
            width = max((len(name) for name, _ in rows), default=0)
            for name, value in rows:
                self._print(f"{name:<{width}}  {value}")
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column()
        for name, value in rows:
            grid.add_row(name, value)
        self.console.print(grid)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table."""
        if self.quiet:
            return
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

    # --- attacks -----------------------------------------------------------------------------------------------------

    def overview(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print what is going to happen."""
        self.facts(rows)
        self.line()

    def watch(self, tokenizer: Any) -> Watch:  # noqa: ANN401
        """Return what follows a running attack."""
        from gradleak.cli.output.live import LiveWatch, PlainWatch, Watch

        if self.quiet:
            return Watch()
        return LiveWatch(self.console, tokenizer) if self.rich else PlainWatch(self.line)

    def outcome(self, outcome: Outcome, number: int, count: int) -> None:
        """Print a batch: the truth, what was found, and how close that is."""
        found = outcome.reconstruction
        if self.quiet:
            for index in outcome.order:
                self.result("" if index is None else found.texts[index])
            return
        if count > 1:
            self.line(f"batch {number} of {count}", "bold")
        rows: list[tuple[str, str | Text]] = []
        for place, index in enumerate(outcome.order):
            reference = outcome.references[place] if place < len(outcome.references or ()) else None  # type: ignore[index]
            if reference is not None:
                rows.append(("private", reference))
            rows.append(("reconstruction", self._found(outcome, index, reference)))
        rows.extend(("note", note) for note in found.notes)
        if found.verified:
            rows.append(("verified", "every text shown was trained on" + (", and nothing else" * found.complete)))
        rows.append(("verdict", found.verdict))
        rows.extend(("not tested", line) for line in found.not_tested)
        rows.extend(("next", line) for line in found.next_steps)
        if outcome.scores is not None and count > 1:  # those of a single batch are the summary
            rows.append(("scores", _score_words(outcome.scores.as_dict())))
        rows.append(("loss", f"{found.loss:.4g} after {found.seconds:.1f} s"))
        self.facts(rows)
        self.line()

    def summary(self, means: Mapping[str, float | None], outcomes: Sequence[Outcome]) -> None:
        """Print the mean scores over all sentences, and the time."""
        if all(outcome.scores is None for outcome in outcomes):
            return
        sentences = sum(len(outcome.references or ()) for outcome in outcomes)
        scored = [name for name in SCORE_TITLES if means[name] is not None]
        self.table(
            ["mean of", *(SCORE_TITLES[name] for name in scored), "seconds"],
            [[plural(sentences, "sentence"), *(f"{means[name]:.1f}" for name in scored), f"{means['seconds']:.1f}"]],
        )
        for remark in score_remarks(means):
            self.line(remark)
        if self.rich and not self.quiet:
            self.console.print(legend())

    def interrupted(self, last: Progress | None, done: int, count: int) -> None:
        """Print where Ctrl-C found the run."""
        self.line(f"interrupted: {done} of {count} batches finished", "yellow")
        if last is not None and done < count:
            rows = [("so far", text) for text in last.texts]
            self.facts([("step", f"{last.step} of {last.total}, loss {last.loss:.4g}"), *rows])

    def _found(self, outcome: Outcome, index: int | None, reference: str | None) -> str | Text:
        found = outcome.reconstruction
        if index is None:
            return "(nothing)"
        if not self.rich or reference is None:
            return found.texts[index]
        return matched_tokens(found.tokenizer, found.token_ids[index], [reference])

    def _print(self, text: str | Text, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=not self.rich)


def _score_words(scores: Mapping[str, float]) -> str:
    return "  ".join(f"{title} {scores[name]:.1f}" for name, title in SCORE_TITLES.items())
