"""Interrupts: SIGTERM ends a command as Ctrl-C does, with partial results written and no process left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gradleak.cli.codes import INTERRUPTED, TERMINATED


class Termination(KeyboardInterrupt):
    """SIGTERM: whatever handles Ctrl-C handles it, too."""


class _Received:
    """Whether this command has received SIGTERM."""

    termination = False


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Termination` in the body at the first SIGTERM; further ones are ignored, so that nothing is written half.

    Only the main thread can handle signals; elsewhere this changes nothing.
    """
    _Received.termination = False
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def interrupt_code() -> int:
    """Return the exit code of an interrupted command: that of SIGTERM if there was one, else that of Ctrl-C."""
    return TERMINATED if _Received.termination else INTERRUPTED


def interrupt_words() -> str:
    """Return how the command was interrupted, in one word."""
    return "terminated" if _Received.termination else "interrupted"


def _terminate(number: int, frame: FrameType | None) -> None:
    if not _Received.termination:
        _Received.termination = True
        raise Termination
