"""The annealing objective: scores, changes and follows the texts of several victims at once (EDR, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.assignment.scoring import CandidateScorer, padded
from gradleak.attacks.edr.proposals import WordMoves
from gradleak.attacks.edr.state import EdrState
from gradleak.attacks.edr.token_adjustment import ScoredSolution, only_sentence
from gradleak.search import Annealed, AnnealingTask, Schedule, anneal


def anneal_texts(
    scorer: CandidateScorer, states: Sequence[EdrState], starts: int, schedule: Schedule, span: float
) -> list[Annealed]:
    """Anneal several starts of all victims in one batch; return the texts found for each victim.

    The first attempt starts from random texts. Later ones start from the best text: sentences that are right stay, and
    the heat shuffles the words of the others.

    Args:
        scorer: the distance of these victims' texts.
        states: the victims' searches.
        starts: how many starts each has.
        schedule: how to anneal.
        span: the largest difference of two distances.
    """
    moves = WordMoves([state.layout.select(state.is_open) for state in states])
    objective = AnnealingObjective(scorer, states, moves)
    found = anneal(
        torch.stack([_starts(state, starts, moves) for state in states]),
        AnnealingTask(
            score=objective.score, propose=objective, span=span, watch=objective.watch, retire=objective.retire
        ),
        schedule,
        [state.victim.generator for state in states],
        tolerance=torch.tensor([state.tolerance for state in states], dtype=torch.float64),
        deadline=states[0].history.deadline,
    )
    return [
        Annealed(state.with_open_part(texts), losses)
        for state, texts, losses in zip(states, found.states, found.losses, strict=True)
    ]


def _starts(state: EdrState, starts: int, moves: WordMoves) -> Tensor:
    """Return the first states of a victim `[starts, length]`, filled up to the length of the longest."""
    texts = state.draw_texts(starts) if bool(state.is_open.all()) else state.open_part().repeat(starts, 1)
    return torch.nn.functional.pad(texts, (0, moves.length - texts.shape[1]), value=moves.filler)


class AnnealingObjective:
    """Score, change and follow the open places of the texts of several victims.

    Args:
        scorer: the distance of these victims' texts.
        states: the victims' searches.
        moves: changes the tokens at open places.
    """

    def __init__(self, scorer: CandidateScorer, states: Sequence[EdrState], moves: WordMoves) -> None:
        self._states, self._moves = list(states), moves
        # One place more than a solution has takes the fillers.
        self._solutions = torch.stack([padded(state.best.solution, scorer.length + 1) for state in states])
        self._where = torch.full((len(states), moves.length), scorer.length)
        for number, state in enumerate(states):
            places = state.is_open.nonzero().flatten()
            self._where[number, : len(places)] = places
        open_sentences = [only_sentence(s.layout.sentences[s.is_open], scorer.sequences) for s in states]
        single = [number for number in open_sentences if number is not None]
        # Where one sentence of each victim is left, the gradients of its other sentences are computed once.
        fixed = len(single) == len(states)
        self._scorer = scorer.with_fixed_sequences(self._solutions[:, :-1], torch.tensor(single)) if fixed else scorer

    def score(self, states: Tensor) -> Tensor:
        """Return the distances `[victims, starts]` of states `[victims, starts, length]`."""
        return self._scorer.distances(self._whole(states))

    @property
    def numbers(self) -> list[int]:
        """How many random numbers a proposal needs for each victim."""
        return self._moves.numbers

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[victims, starts, tries, length]`."""
        return self._moves(states, numbers, heat)

    def watch(self, _: int, best: Annealed) -> None:
        """Record the best text of each victim so far in its history."""
        losses, nearest = best.losses.min(dim=1)
        solutions = self._whole(best.states[torch.arange(len(nearest)), nearest][:, None])[:, 0]
        for state, solution, loss in zip(self._states, solutions, losses.tolist(), strict=True):
            state.record(ScoredSolution(solution[: len(state.best.solution)], loss))

    def retire(self, remaining: Sequence[int]) -> None:
        """Continue with the remaining victims alone."""
        self._states = [self._states[number] for number in remaining]
        self._solutions, self._where = self._solutions[remaining], self._where[remaining]
        self._scorer, self._moves = self._scorer.select(remaining), self._moves.select(remaining)

    def _whole(self, states: Tensor) -> Tensor:
        """Return whole solutions `[victims, starts, places]`, with states at their open places."""
        count = states.shape[1]
        solutions, where = (own[:, None].expand(-1, count, -1) for own in (self._solutions, self._where))
        return solutions.scatter(2, where, states)[..., :-1]
