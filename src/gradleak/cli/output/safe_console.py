"""The console of every display: whatever a renderable holds, no control character of it reaches the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gradleak.cli.startup import something_is_printed
from gradleak.printable import visible


class SafeConsole(Console):
    """A Rich console that shows control characters and bidi marks of texts as symbols.

    Strings are cleaned before they are laid out; segments of every other renderable when they are rendered. Escape
    codes of Rich itself are no text: they are added to the segments later.
    """

    def on_broken_pipe(self) -> None:
        """Raise the error that ends the command; Rich would exit with a code of its own."""
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - those of Rich
        """Return a string as text with symbols in place of control characters."""
        return super().render_str(visible(text, lines=True), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, cleaned."""
        something_is_printed()  # not when the console is made: much may be imported before the first line
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text, lines=True), segment.style)
