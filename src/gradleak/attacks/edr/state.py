"""The state of EDR's search for the text of one victim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.assignment.history import SearchHistory
from gradleak.assignment.problem import AssignmentProblem
from gradleak.attacks.edr.proposals import TokenLayout
from gradleak.attacks.edr.token_adjustment import ScoredSolution
from gradleak.attacks.edr.token_fusion import FusedWord, draw_words, fuse
from gradleak.exchange import Victim


@dataclass
class EdrState:
    """The search for one victim's text of one assumed length.

    Attributes:
        number: the problem's index in its scorer.
        victim: the update under attack.
        problem: tokens and places.
        layout: its words and sentences.
        words: the words that TokenFusion found.
        tolerance: the distance below which two gradients are the same but for rounding.
        history: follows the search.
        best: the nearest solution so far.
        is_open: True for places of sentences that are not right yet `[places]`.
    """

    number: int
    victim: Victim
    problem: AssignmentProblem
    layout: TokenLayout
    words: Sequence[FusedWord]
    tolerance: float
    history: SearchHistory
    best: ScoredSolution
    is_open: Tensor

    @classmethod
    def begin(
        cls, number: int, victim: Victim, problem: AssignmentProblem, tolerance: float, history: SearchHistory
    ) -> EdrState:
        """Return the state before the first solution: its words are fused (section 4.1), and all places are open."""
        words = fuse(problem.target, problem.vocabulary.tolist(), history.deadline)
        nothing = ScoredSolution(torch.zeros(problem.places, dtype=torch.long), float("inf"))
        layout = TokenLayout.of(problem)
        is_open = torch.ones_like(layout.sentences, dtype=torch.bool)
        return cls(number, victim, problem, layout, words, tolerance, history, nothing, is_open)

    @property
    def unsolved(self) -> bool:
        """Whether the gradient does not match yet, and there are sentences to be changed."""
        return self.best.loss > self.tolerance and bool(self.is_open.any())

    def improve(self, found: ScoredSolution) -> None:
        """Keep a solution if it is nearer than the best so far."""
        self.best = min(self.best, found, key=lambda text: text.loss)

    def record(self, found: ScoredSolution) -> None:
        """Add one step, with the solution that it led to, to the history."""
        self.history.step(self.problem, *found)

    def draw_texts(self, count: int) -> Tensor:
        """Draw random texts of the fused words `[count, places]`."""
        tokens = self.problem.vocabulary.tolist()
        drawn = [draw_words(self.words, tokens, self.problem.places, self.victim.generator) for _ in range(count)]
        number = {token: index for index, token in enumerate(tokens)}
        return torch.tensor([[number[token] for word in words for token in word] for words in drawn])

    def open_part(self) -> Tensor:
        """Return the best solution's tokens at the open places."""
        return self.best.solution[self.is_open]

    def with_open_part(self, states: Tensor) -> Tensor:
        """Return the best solution with states `[count, length]` at the open places instead `[count, places]`."""
        solutions = self.best.solution.repeat(len(states), 1)
        solutions[:, self.is_open] = states[:, : int(self.is_open.sum())]
        return solutions
