"""Interrupts: SIGTERM ends a command as Ctrl-C does, with partial results written and no process left behind.

The handler raises in whatever runs at that moment, and not all of that lets the exception through: Python drops what a
finaliser raises, and so do libraries while they are imported, or they turn it into an error of their own. Therefore
an interrupt that is gone before the command has acknowledged it is raised again, and `interrupted` tells of it where
another error arrives.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gradleak.cli.codes import INTERRUPTED, TERMINATED

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0
"""Seconds in which a further SIGTERM is ignored: partial results are being written."""
AGAIN = 0.05
"""Seconds after which a dropped interrupt is raised again."""


class Interruption(KeyboardInterrupt):
    """SIGINT or SIGTERM: whatever handles Ctrl-C handles both."""


class _Received:
    """What the running command has received.

    Attributes:
        number: its first signal; None if there was none.
        terminated: when SIGTERM was raised last, by `time.monotonic`.
        dropped: watches the exception that was raised last; None when none has to be raised again.
    """

    number: int | None = None
    terminated = -PATIENCE
    dropped: weakref.ref[Interruption] | None = None


@contextmanager
def terminable(*, is_last: bool = False) -> Iterator[None]:
    """Raise `Interruption` in the body at SIGINT and SIGTERM.

    Only the main thread can handle signals; elsewhere this changes nothing. A signal that is ignored stays so, as in a
    job that a shell runs in the background.

    Args:
        is_last: the process ends with the body. Its exit code is settled then, and later signals are ignored: libraries
            take a while to be torn down.
    """
    _Received.number, _Received.terminated, _Received.dropped = None, -PATIENCE, None
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, _interrupt)) for number in handled]
    unraisable, sys.unraisablehook = sys.unraisablehook, _report_dropped
    try:
        yield
    finally:
        acknowledge()
        sys.unraisablehook = unraisable
        for number, handler in before:
            signal.signal(number, signal.SIG_IGN if is_last else handler)


def acknowledge() -> None:
    """Say that the command has noticed the interrupt and comes to its end."""
    _Received.dropped = None


def interrupted() -> bool:
    """Return whether this command has received SIGINT or SIGTERM."""
    return _Received.number is not None


def interrupt_code() -> int:
    """Return the exit code of an interrupted command, by its first signal; that of Ctrl-C without one."""
    return TERMINATED if _Received.number == signal.SIGTERM else INTERRUPTED


def interrupt_words() -> str:
    """Return how the command was interrupted, in one word."""
    return "terminated" if _Received.number == signal.SIGTERM else "interrupted"


def _interrupt(number: int, frame: FrameType | None) -> None:
    _Received.number = _Received.number or number
    if number == signal.SIGTERM:
        if time.monotonic() - _Received.terminated < PATIENCE:
            return
        _Received.terminated = time.monotonic()
    interruption = Interruption()
    _Received.dropped = weakref.ref(interruption, lambda gone: _raise_again(gone, number))
    try:
        raise interruption
    finally:
        del interruption  # its traceback holds this frame: a cycle would keep it alive


def _raise_again(gone: weakref.ref[Interruption], number: int) -> None:
    """Send a signal again whose exception is gone, unless the command has acknowledged it in the meantime."""

    def send() -> None:
        if _Received.dropped is gone:
            _Received.terminated = -PATIENCE
            # The main thread may not look at a signal of another one before it has to.
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    later = threading.Timer(AGAIN, send)
    later.daemon = True
    later.start()


def _report_dropped(dropped: sys.UnraisableHookArgs) -> None:
    """Report an exception that Python drops, but not an interrupt, which is raised again."""
    if not issubclass(dropped.exc_type, Interruption):
        sys.__unraisablehook__(dropped)
