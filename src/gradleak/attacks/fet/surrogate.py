"""Gradleak's own search in place of FET's phases: exploration by learning, pairs of moves, words with known columns.

It predicts the classifier's gradient, and is what settings `rounds`, `pairs` and `positions` (preset `thorough`) switch
on. Nothing here is in FET's paper; Mosaic uses it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradleak.attacks.fet.scored_problem import ScoredProblem
from gradleak.exchange import Deadline
from gradleak.matching.classifier_matcher import ClassifierMatcher
from gradleak.search import (
    ColumnExchanges,
    ColumnGrid,
    GridFeatures,
    LearningSettings,
    LearningTask,
    PooledMoves,
    RowSurrogate,
    SequenceFeatures,
    Surrogate,
    likely_pairs,
    search_by_learning,
)

EFFORT = 80  # random solutions to start from, and steps of annealing, for each place
MAX_FEATURES = 8_000  # tokens at places and pairs of tokens in a surrogate: its matrices have as many rows
LEARNT_PER_SECOND = 5e8  # of the time left, counting a round of learning from n features as n³
# How words of known columns are assigned to sentences.
ARRANGED = LearningSettings(first=300, asked=100, patience=6, chains=256)
EXCHANGES = 40  # steps of annealing for each place and each sentence but one


def rounds_of_attempt(rounds: int, attempt: int, attempts: int, lengths: int) -> int:
    """Return the rounds of an attempt, counted from 1: of several lengths, only the last attempt takes all rounds.

    All lengths but one are wrong, and the earlier attempts take a quarter.
    """
    return rounds if lengths == 1 or attempt == attempts else -(-rounds // 4)


def explore_by_learning(one: ScoredProblem, rounds: int) -> Tensor | None:
    """Return a solution near the goal `[places]`; None without rounds, or if there are too many features to learn."""
    problem = one.problem
    features = SequenceFeatures(problem.places, problem.kinds)
    if not rounds or features.count > _learnable(one.history.deadline):
        return None
    effort = EFFORT * problem.places
    task = LearningTask(
        draw=one.draw,
        compare=_Comparison(one).compare,
        surrogate=Surrogate(features),
        moves=lambda device: PooledMoves.draw(features, one.generator, device),
    )
    settings = LearningSettings(first=effort, steps=effort, rounds=rounds)
    solution, _ = search_by_learning(task, settings, one.generator, one.control)
    return solution


def arrange_columns(one: ScoredProblem, grid: ColumnGrid, rounds: int) -> tuple[Tensor, float]:
    """Search for the sentence of each word, where the words of each position are known; return it with its distance.

    The classifier's gradient is a sum over the sentences: the surrogate learns from each sentence separately.
    """
    comparison = _Comparison(one)
    task = LearningTask(
        draw=lambda count: grid.draw(count, one.generator),
        compare=comparison.compare,
        surrogate=RowSurrogate(_grid_features(one, grid), comparison.row_gradients, comparison.matcher.goal[0]),
        moves=lambda _: ColumnExchanges(grid.rows, grid.padding),
    )
    steps = EXCHANGES * grid.columns * max(1, grid.rows - 1)
    return search_by_learning(task, replace(ARRANGED, rounds=rounds, steps=steps), one.generator, one.control)


def promising_pairs(one: ScoredProblem, solution: Tensor, reached: Tensor, orders: Tensor, count: int) -> Tensor:
    """Return the solutions `[count, places]` that two moves in a row should bring nearest to the goal.

    Args:
        one: the problem.
        solution: where the moves begin `[places]`.
        reached: the solutions that single moves lead to `[moves, places]`.
        orders: the moves behind the first of those, as orders `[orders, places]`.
        count: how many to return.
    """
    _, residuals = _Comparison(one).compare(torch.cat([solution[None], reached]))
    first, second = likely_pairs(residuals[0], residuals[0] - residuals[1:], count, len(orders))
    return reached[first.cpu()].gather(1, orders[second.cpu()])


class _Comparison:
    """Gradients of the classifier, which the surrogate is fitted to."""

    def __init__(self, one: ScoredProblem) -> None:
        assert isinstance(one.matcher, ClassifierMatcher)
        self.matcher = one.matcher
        self._one = one

    def compare(self, solutions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances `[count]` of solutions, and the residuals of the classifier's gradient."""
        one = self._one
        (distances,), (residuals,) = self.matcher.compare(one.problem.candidates(solutions, one.labels))
        one.score.add(solutions, distances)
        return distances, residuals

    def row_gradients(self, solutions: Tensor) -> Tensor:
        """Return the classifier's gradient of each sentence in each class `[classes, count, sequences, entries]`."""
        problem = self._one.problem
        labelled = (
            problem.candidates(solutions, label.expand(problem.sequences)) for label in torch.unique(self._one.labels)
        )
        return torch.cat([self.matcher.per_sequence_gradients(candidates) for candidates in labelled])


def _grid_features(one: ScoredProblem, grid: ColumnGrid) -> GridFeatures:
    """Return the features of a grid, with pairs of words as far apart as the limit on features allows."""
    _, classes = torch.unique(one.labels, return_inverse=True)
    ways = [GridFeatures.of(grid, classes, reach, one.matcher.target.device) for reach in (2, 1, 0)]
    most = _learnable(one.history.deadline)
    return next((features for features in ways if features.count <= most), ways[-1])


def _learnable(deadline: Deadline) -> int:
    """Return how many features a surrogate may have; fewer, for shorter rounds, where there is a deadline."""
    if not deadline.limited:
        return MAX_FEATURES
    return min(MAX_FEATURES, int((LEARNT_PER_SECOND * max(0.0, deadline.left)) ** (1 / 3)))
