"""The history of a search for the solution of an assignment problem: progress and snapshots. Used by FET and EDR."""

from __future__ import annotations

from torch import Tensor

from gradleak.assignment.problem import AssignmentProblem
from gradleak.exchange import Reporter, Snapshot

SNAPSHOTS = 10


class SearchHistory:
    """Follow the search for one victim's text.

    Args:
        reporter: receives the progress of every step.
        total: the most steps that the search may take.

    Attributes:
        snapshots: the best text at the first step and at about ten later ones.
        deadline: when the search has to end.
    """

    def __init__(self, reporter: Reporter, total: int) -> None:
        self.snapshots: tuple[Snapshot, ...] = ()
        self.deadline = reporter.deadline
        self._reporter, self._total = reporter, total
        self._step = 0
        self._best: tuple[float, AssignmentProblem, Tensor] | None = None

    def step(self, problem: AssignmentProblem, solution: Tensor, loss: float) -> None:
        """Record the best solution of one step."""
        self._step += 1
        if self._best is None or loss < self._best[0]:
            self._best = loss, problem, solution
        self._report()
        if self._step == 1 or self._step % max(1, self._total // SNAPSHOTS) == 0:
            self.snapshots = (*self.snapshots, Snapshot(self._step, *self._look()))

    def finish(self) -> None:
        """Report the end of the search, which may come before the last step."""
        self._step = self._total
        self._report()

    def _report(self) -> None:
        self._reporter(self._step, self._total, self._look)

    def _look(self) -> tuple[float, tuple[str, ...]]:
        assert self._best is not None
        loss, problem, solution = self._best
        return loss, problem.texts(solution)
