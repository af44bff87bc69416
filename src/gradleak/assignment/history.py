"""What a search over solutions of a puzzle leaves behind: progress for the reporter, and snapshots."""

from __future__ import annotations

from torch import Tensor

from gradleak.assignment.problem import Puzzle
from gradleak.exchange import Reporter, Snapshot

SNAPSHOTS = 10


class Trail:
    """Follows one victim's search.

    Args:
        reporter: told at every step.
        number: which of the victims it is.
        victims: how many there are.
        total: the most steps that the search may take.

    Attributes:
        deadline: when the search has to end.
    """

    def __init__(self, reporter: Reporter, number: int, victims: int, total: int) -> None:
        self.snapshots: tuple[Snapshot, ...] = ()
        self.deadline = reporter.deadline
        self._reporter, self._number, self._victims, self._total = reporter, number, victims, total
        self._step = 0
        self._view: tuple[float, Puzzle, Tensor] | None = None

    def step(self, puzzle: Puzzle, solution: Tensor, loss: float) -> None:
        """Take note of a step's best solution."""
        self._step += 1
        if self._view is None or loss < self._view[0]:
            self._view = loss, puzzle, solution
        self._tell()
        if self._step == 1 or self._step % max(1, self._total // SNAPSHOTS) == 0:
            self.snapshots = (*self.snapshots, Snapshot(self._step, *self._look()))

    def finish(self) -> None:
        """Tell of the end, which may come early."""
        self._step = self._total
        self._tell()

    def _tell(self) -> None:
        self._reporter(self._number * self._total + self._step, self._victims * self._total, self._look)

    def _look(self) -> tuple[float, tuple[str, ...]]:
        assert self._view is not None
        loss, puzzle, solution = self._view
        return loss, puzzle.texts(solution)
