"""One assignment problem of a victim, with the distance of its solutions: what FET's phases search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.assignment.history import SearchHistory
from gradleak.assignment.problem import AssignmentProblem
from gradleak.matching import Matcher
from gradleak.matching.classifier_matcher import HeadMatcher
from gradleak.search import ScoreCache, SearchControl


@dataclass(frozen=True)
class ScoredProblem:
    """One attempt at an assignment problem.

    Attributes:
        problem: tokens and places.
        matcher: the distance to the observed gradient.
        labels: the sequences' classes `[sequences]`.
        generator: the victim's source of randomness, on the CPU.
        tolerance: the distance below which two gradients are the same but for rounding.
        history: follows the search.
    """

    problem: AssignmentProblem
    matcher: Matcher | HeadMatcher
    labels: Tensor
    generator: torch.Generator
    tolerance: float
    history: SearchHistory

    @cached_property
    def score(self) -> ScoreCache:
        """The distance of solutions `[count, places]`; each solution is scored once."""
        return ScoreCache(lambda solutions: self.matcher(self.problem.candidates(solutions, self.labels))[0])

    @property
    def control(self) -> SearchControl:
        """End a search at the tolerance or the deadline, and record its steps in the history."""
        return SearchControl(tolerance=self.tolerance, watch=self.record, deadline=self.history.deadline)

    def draw(self, count: int) -> Tensor:
        """Draw random solutions `[count, places]`."""
        return self.problem.draw(count, self.generator)

    def record(self, solution: Tensor, loss: float) -> None:
        """Record the best solution of a step."""
        self.history.step(self.problem, solution, loss)
