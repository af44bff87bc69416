"""Progress of a running attack, told to whoever listens without slowing it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    step: int
    total: int
    loss: float
    texts: tuple[str, ...]
    seconds: float

    @property
    def seconds_left(self) -> float:
        """Estimate from the pace so far."""
        return self.seconds / self.step * (self.total - self.step) if self.step else float("inf")


Listener = Callable[[Progress], None]


class Reporter:
    """Passes progress on, at most every `interval` seconds: reading a loss stops a GPU's queue.

    Args:
        listener: called with each report; None for silence.
        interval: seconds between reports.
    """

    def __init__(self, listener: Listener | None = None, interval: float = 0.25) -> None:
        self._listener = listener
        self._interval = interval
        self._started = time.monotonic()
        self._reported = float("-inf")

    def __call__(self, step: int, total: int, look: Callable[[], tuple[float, tuple[str, ...]]]) -> None:
        """Report if it is time; `look` gives loss and texts and is called only then."""
        if self._listener is None:
            return
        now = time.monotonic()
        if now - self._reported < self._interval and step < total:
            return
        self._reported = now
        loss, texts = look()
        self._listener(Progress(step, total, loss, texts, now - self._started))
