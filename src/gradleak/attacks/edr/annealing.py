"""What annealing is told of the texts of several victims (EDR, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.assignment.scoring import Judge, padded
from gradleak.attacks.edr.state import Case
from gradleak.attacks.edr.token_adjustment import Text, only_one
from gradleak.attacks.edr.token_fusion import LexemeMoves
from gradleak.search import Annealed


@dataclass(frozen=True)
class Start:
    """A text whose open places `[places]` are annealed."""

    case: Case
    text: Text
    is_open: Tensor

    @property
    def solution(self) -> Tensor:
        """The text as a solution of its puzzle."""
        return self.text.solution

    def whole(self, states: Tensor) -> Tensor:
        """Return solutions `[count, places]` with states `[count, length]` at the open places."""
        solutions = self.solution.repeat(len(states), 1)
        solutions[:, self.is_open] = states[:, : int(self.is_open.sum())]
        return solutions


class Heat:
    """What annealing is told: it scores, changes and watches the texts of all victims together.

    Args:
        judge: of these texts' puzzles.
        starts: the texts.
        moves: changes what is open in them.
    """

    def __init__(self, judge: Judge, starts: Sequence[Start], moves: LexemeMoves) -> None:
        self._starts, self._moves = list(starts), moves
        # One place more than a solution has takes the fillers.
        self._solutions = torch.stack([padded(start.solution, judge.length + 1) for start in starts])
        self._where = torch.full((len(starts), moves.length), judge.length)
        for number, start in enumerate(starts):
            places = start.is_open.nonzero().flatten()
            self._where[number, : len(places)] = places
        open_sequences = [only_one(s.case.words.sentences[s.is_open], judge.sequences) for s in starts]
        alone = [number for number in open_sequences if number is not None]
        # One sentence of each is left: what the others give is the same in all its texts.
        held = len(alone) == len(starts)
        self._judge = judge.with_fixed_sequences(self._solutions[:, :-1], torch.tensor(alone)) if held else judge

    def score(self, states: Tensor) -> Tensor:
        """Return the distances `[victims, starts]` of states `[victims, starts, length]`."""
        return self._judge.distances(self._whole(states))

    @property
    def numbers(self) -> list[int]:
        """How many random numbers a proposal takes for each victim."""
        return self._moves.numbers

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[victims, starts, tries, length]`."""
        return self._moves(states, numbers, heat)

    def watch(self, _: int, best: Annealed) -> None:
        """Tell everyone's trail of the best text so far."""
        losses, nearest = best.losses.min(dim=1)
        solutions = self._whole(best.states[torch.arange(len(nearest)), nearest][:, None])[:, 0]
        for start, solution, loss in zip(self._starts, solutions, losses.tolist(), strict=True):
            start.case.trail.step(start.case.puzzle, solution[: len(start.solution)], loss)

    def leave(self, going: Sequence[int]) -> None:
        """Go on with some of the victims."""
        self._starts = [self._starts[number] for number in going]
        self._solutions, self._where = self._solutions[going], self._where[going]
        self._judge, self._moves = self._judge.of(going), self._moves.of(going)

    def _whole(self, states: Tensor) -> Tensor:
        count = states.shape[1]
        solutions, where = (own[:, None].expand(-1, count, -1) for own in (self._solutions, self._where))
        return solutions.scatter(2, where, states)[..., :-1]
