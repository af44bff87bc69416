"""Progress reports and deadlines: what a running attack and its caller exchange."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """State of a run at one report.

    Attributes:
        step: steps done.
        total: steps in all.
        loss: the best loss so far.
        texts: the texts found so far.
        seconds: time since the run began.
        first_step: step at the first report, from which the pace is computed.
        first_seconds: time of that report; initialisation before it does not count towards the pace.
    """

    step: int
    total: int
    loss: float
    texts: tuple[str, ...]
    seconds: float
    first_step: int = 0
    first_seconds: float = 0.0

    @property
    def seconds_left(self) -> float:
        """Estimated seconds left, at the pace so far."""
        steps = self.step - self.first_step
        if not steps:
            return 0.0 if self.step == self.total else float("inf")
        return (self.seconds - self.first_seconds) / steps * (self.total - self.step)


Listener = Callable[[Progress], None]

Look = Callable[[], tuple[float, tuple[str, ...]]]
"""Return the best loss and texts so far; called only when there is a report."""


class Deadline:
    """The time by which a run has to end; loops check `passed` and return the best they have.

    Args:
        seconds: from now; None for no deadline.

    Attributes:
        hit: whether any loop saw the deadline pass; the result may then be incomplete.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._until = float("inf") if seconds is None else time.monotonic() + seconds
        self._whole: Deadline | None = None
        self.hit = False

    @property
    def limited(self) -> bool:
        """Whether there is a deadline at all; long computations are then done in smaller parts."""
        return self._until < float("inf")

    @property
    def left(self) -> float:
        """Seconds left; negative once it has passed."""
        return self._until - time.monotonic()

    @property
    def passed(self) -> bool:
        """Whether the time is up; check it before each step that takes more than a fraction of a second."""
        if self.left > 0:
            return False
        self.hit = True
        if self._whole is not None:
            self._whole.hit = True
        return True

    def sooner(self, seconds: float) -> Deadline:
        """Return a deadline for a part of the run: the earlier of this one and `seconds` from now."""
        part = Deadline(min(self.left, seconds))
        part._whole = self
        return part

    def share(self, fraction: float) -> Deadline:
        """Return a deadline for one of several ways to the same result: that its time is up makes none incomplete."""
        return Deadline(fraction * max(self.left, 0.0))


class Reporter:
    """Passes progress on, at most every `interval` seconds: reading a loss stops a GPU's queue.

    Args:
        listener: called with each report; None for silence.
        interval: seconds between reports.
        deadline: when the run has to end; none by default.

    Attributes:
        deadline: asked by every loop of an attack that may take longer than a second.
    """

    def __init__(
        self, listener: Listener | None = None, interval: float = 0.5, deadline: Deadline | None = None
    ) -> None:
        self.deadline = deadline or Deadline()
        self._listener = listener
        self._interval = interval
        self._started = time.monotonic()
        self._reported = float("-inf")
        self._first: tuple[int, float] | None = None
        self._step = 0

    def within(self, deadline: Deadline) -> Reporter:
        """Return a reporter to the same listener, of a part of the run that has to end earlier."""
        part = copy(self)
        part.deadline = deadline
        return part

    def split(self, steps: Sequence[int]) -> list[Reporter]:
        """Return reporters for the parts of a run, which may run one after the other or at the same time.

        Each part counts its own steps; the run has done the sum of the steps of all parts.

        Args:
            steps: how many steps of the run each part has.
        """
        done = [0] * len(steps)
        return [_PartReporter(self, done, number, steps) for number in range(len(steps))]

    def __call__(self, step: int, total: int, look: Look) -> None:
        """Report if it is time; `look` gives loss and texts and is called only then."""
        if self._listener is None:
            return
        now = time.monotonic()
        if now - self._reported < self._interval and step < total:
            return
        self._reported = now
        loss, texts = look()
        seconds = now - self._started
        if self._first is None or step < self._step:  # also where another run begins
            self._first = step, seconds
        self._step = step
        self._listener(Progress(step, total, loss, texts, seconds, *self._first))


class _PartReporter(Reporter):
    """Reports one part of a run.

    Args:
        whole: the run's reporter.
        done: the steps that each part has done, shared by all parts.
        number: the index of this part.
        steps: how many steps of the run each part has.
    """

    def __init__(self, whole: Reporter, done: list[int], number: int, steps: Sequence[int]) -> None:
        super().__init__(deadline=whole.deadline)
        self._whole, self._done, self._number = whole, done, number
        self._steps, self._total = steps[number], sum(steps)

    def __call__(self, step: int, total: int, look: Look) -> None:
        """Report the progress of the run, from the step of this part and its own total."""
        self._done[self._number] = step * self._steps // max(1, total)
        self._whole(sum(self._done), self._total, look)
