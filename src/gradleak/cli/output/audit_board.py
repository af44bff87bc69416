"""Progress display of an audit: a line for every setting, and on a terminal bars for the running updates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gradleak.cli.output.live import clock
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.study_board import LiveBoard
from gradleak.cli.output.wording import plural
from gradleak.cli.startup import when_begun
from gradleak.printable import in_one_line

if TYPE_CHECKING:
    from gradleak.assessment.trials import Trial, TrialResult
    from gradleak.studies import Event

BLOCK = "\N{BLACK VERTICAL RECTANGLE}"


class AuditBoard:
    """Prints a line for every setting, the first recovered sentence as soon as there is one, and draws bars.

    Args:
        screen: where to print.
        budget: seconds for the whole audit.
        reveal: whether private words may be printed.
    """

    def __init__(self, screen: Screen, budget: float, reveal: bool) -> None:
        self._screen = screen
        self._budget = budget
        self._reveal = reveal
        self._shown = False
        self._bars = LiveBoard(Screen(quiet=True), screen.console) if screen.rich and not screen.quiet else None

    def __enter__(self) -> AuditBoard:
        if self._bars is not None:
            self._bars.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bars is not None:
            self._bars.__exit__(None, None, None)

    def see(self, event: Event) -> None:
        """Take an event of the study underneath."""
        from gradleak.studies.execution.events import Finished

        if self._bars is not None:
            self._bars.see(event)
        if isinstance(event, Finished):
            self._first_sentence(event)

    def trial(self, trial: Trial, result: TrialResult | None) -> None:
        """Print the result of a setting."""
        if result is None:
            return
        elapsed = time.perf_counter() - when_begun()
        left = f"about {clock(max(0.0, self._budget - elapsed))} of the budget left"
        self._screen.line(f"{trial.name}: {_found(result)}  ({left})")

    def _first_sentence(self, event: Event) -> None:
        from gradleak.studies.execution.events import Finished

        if self._shown or not isinstance(event, Finished):
            return
        read = max(event.outcome.sentences, key=lambda sentence: sentence.rougeL, default=None)
        if read is None or not read.reconstruction or read.rougeL < 50:
            return
        self._shown = True
        count = len(read.reference.split())
        hidden = f"{BLOCK * count} ({plural(count, 'word')}; --reveal shows them)"
        words = in_one_line(read.reconstruction) if self._reveal else hidden
        how = "word for word" if read.exact else f"ROUGE-L {read.rougeL:.0f}"
        self._screen.line(f"first sentence read back, {how}: {words}", "red")


def _found(result: TrialResult) -> str:
    if result.error is not None:
        return f"not measured: {result.error}"
    return (
        f"ROUGE-L {result.rouge_l:.0f}, {result.exact} of {plural(len(result.sentences), 'sentence')} word for word, "
        f"{result.seconds:.1f} s"
    )
