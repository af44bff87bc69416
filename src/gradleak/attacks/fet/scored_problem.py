"""What FET's phases search: one assignment problem of a victim, and the distance of its solutions (section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.assignment.history import SearchHistory
from gradleak.assignment.problem import AssignmentProblem
from gradleak.matching import DISTANCES, Matcher, select_parameters
from gradleak.matching.classifier_matcher import ClassifierMatcher
from gradleak.search import ScoreCache, SearchControl
from gradleak.targets import Target

# The paper stops at d = 0. Here a gradient with a smaller relative error is the same but for rounding; wrong orders
# have a hundred times as much.
SAME = {"classifier": 1e-4, "all": 1e-2}


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
    matcher: Matcher | ClassifierMatcher
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


def matcher_of(
    target: Target, gradient: Mapping[str, Tensor], layers: str, distance: str
) -> Matcher | ClassifierMatcher:
    """Return the distance to a gradient: of the fully connected layer alone, or of all layers."""
    if layers == "classifier":
        return ClassifierMatcher(target, [gradient], DISTANCES[distance]())
    return Matcher(target, [gradient], DISTANCES[distance]())


def tolerance_of(target: Target, gradient: Mapping[str, Tensor], layers: str, distance: str) -> float:
    """Return the distance below which two gradients are the same but for rounding."""
    share = SAME[layers]
    if distance == "cosine":
        return share**2 / 2
    norm = 1 if distance == "l1" else 2
    names = select_parameters(target, gradient, layers)
    return share * sum(float(gradient[name].double().flatten().norm(p=norm)) for name in names)
