"""The start of a process: standard streams that can take any text, and a first line if the start takes long.

Importing torch and loading a model take seconds, in which a command has nothing to print yet.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time

from gradleak.errors import GradleakError

SILENCE = 0.5
"""Seconds without output after which a line says that the command is at work."""


class _Command:
    """When the command began, by `time.perf_counter`."""

    began = time.perf_counter()


def begin() -> None:
    """Put down that a command begins."""
    _Command.began = time.perf_counter()


def when_begun() -> float:
    """Return when the command began, by `time.perf_counter`: before torch and all else was imported."""
    return _Command.began


class _Notice:
    """The line that is due; None if something has been printed, or none is wanted."""

    timer: threading.Timer | None = None


def prepare_streams() -> None:
    """Let standard streams print any character, escaped if their encoding lacks it.

    Raises:
        GradleakError: if standard output is closed. Its number would be given to the next file that is opened, and
            output of libraries would be written into that.
    """
    closed = sys.stdout is None
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    if closed:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
        raise GradleakError("standard output is closed: send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def announce(text: str) -> None:
    """Print a line on standard error after `SILENCE`, unless `something_is_printed` is called before."""
    something_is_printed()
    _Notice.timer = threading.Timer(SILENCE, _print, [text])
    _Notice.timer.daemon = True
    _Notice.timer.start()


def something_is_printed() -> None:
    """Cancel the line that `announce` would print."""
    if _Notice.timer is not None:
        _Notice.timer.cancel()
        _Notice.timer = None


def _print(text: str) -> None:
    if _Notice.timer is not None:
        print(text, file=sys.stderr, flush=True)
