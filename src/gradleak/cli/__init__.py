"""The command line: parses options, runs what they ask for, and prints the results.

app         the application: commands, one-line errors, exit codes
commands    one module for each command
options     options, groups of options, and their parsers
planning    from options to an attack plan
output      screen, progress displays and JSON files
interrupts  SIGTERM, handled as Ctrl-C is
startup     standard streams, and a first line if nothing else is printed soon
codes       exit codes

No module here imports torch when it is imported: `--help` must be fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from gradleak.cli.interrupts import acknowledge, interrupt_code, interrupt_words, terminable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with terminable(is_last=arguments is None):
        try:
            # All else is imported here, where an interrupt is already handled.
            from gradleak.cli.startup import begin

            begin()
            from gradleak.cli.app import run

            return run(arguments)
        except KeyboardInterrupt:
            acknowledge()
            with suppress(OSError):
                print(f"gradleak: {interrupt_words()}", file=sys.stderr, flush=True)
            return interrupt_code()


__all__ = ["main"]
