"""The start of a process: standard streams that can take any text, and a first line if the start takes long.

Importing torch and loading a model take seconds, in which a command has nothing to print yet.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from contextlib import suppress
from importlib.abc import MetaPathFinder

from gradleak.errors import GradleakError

HEAVY = "torch"
"""The module whose import takes most of the start."""
SILENCE = 0.15
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
    finder: MetaPathFinder | None = None


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
    """Print a line on standard error after `SILENCE`, unless `something_is_printed` is called before.

    If torch is imported first, the line is printed before that: while its libraries are loaded, no other thread runs.
    """
    something_is_printed()
    _Notice.timer = threading.Timer(SILENCE, _print, [text])
    _Notice.timer.daemon = True
    _Notice.timer.start()
    if HEAVY not in sys.modules:
        _Notice.finder = _HeavyImport(text)
        sys.meta_path.insert(0, _Notice.finder)


def something_is_printed() -> None:
    """Cancel the line that `announce` would print."""
    timer, _Notice.timer = _Notice.timer, None
    if timer is not None:
        timer.cancel()
    finder, _Notice.finder = _Notice.finder, None
    if finder is not None and finder in sys.meta_path:
        sys.meta_path.remove(finder)


class _HeavyImport(MetaPathFinder):
    """Finds no module, and prints the line that is due when the one that takes long is looked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == HEAVY:
            _print(self._text)


def _print(text: str) -> None:
    if _Notice.timer is not None:
        something_is_printed()
        print_notice(text)


def print_notice(text: str) -> None:
    """Print a line on standard error; one that cannot be written, as on a full disk, does not change what is done."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
