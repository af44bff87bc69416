"""Search by learning: anneal on a surrogate, compare only what it predicts to be near, and refit it with the result.

Gradleak's own, used by FET's preset `thorough` and with it by Mosaic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.hashing import solution_hashes
from gradleak.search.control import SearchControl
from gradleak.search.moves import Move, move_subsequence, move_token, swap
from gradleak.search.proposals import ProposeForOne
from gradleak.search.surrogate import SequenceFeatures, SurrogatePrediction

Draw = Callable[[int], Tensor]
"""Draw that many random solutions `[count, places]`."""

Compare = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Return the distances `[count]` and residuals `[count, entries]`, the goal minus the gradient, of solutions."""

Moves = Callable[[torch.device], ProposeForOne]
"""Draw the proposals of one round of annealing, on a device."""

MOVES: tuple[Move, ...] = (swap, move_token, move_subsequence)
COOLED = 0.1  # the last temperature as a share of the first
TRUST = 0.7  # share of the surrogate's error at a solution that is expected nearby, too
ZERO = 1e-9
BLOCK = 64  # steps whose random numbers are drawn at once
POOL = 4_096  # moves of each kind that a round draws from
LEARNT_AT_ONCE = 256  # solutions that are learnt from between two looks at a deadline
REPLACING = 0.1  # share of proposals that replace a repeated token by another


class TrainableSurrogate(Protocol):
    """A model that learns from comparisons: a `Surrogate`, or one with the same interface."""

    def learn(self, solutions: Tensor, residuals: Tensor, weights: Tensor) -> None:
        """Add solutions to the model's data (see `Surrogate.learn`)."""
        ...

    def fit(self) -> SurrogatePrediction:
        """Return the fitted model."""
        ...


@dataclass(frozen=True, kw_only=True)
class LearningTask:
    """What is searched.

    Attributes:
        draw: draws random solutions to start from.
        compare: computes what is minimised, and the residuals that it depends on.
        surrogate: predicts the distances of solutions that were not compared.
        moves: draws the moves that lead from solutions to others.
    """

    draw: Draw
    compare: Compare
    surrogate: TrainableSurrogate
    moves: Moves


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """How to search by learning.

    Attributes:
        first: random solutions that are compared first.
        rounds: the most rounds of fitting, annealing and comparing.
        asked: the most solutions that a round compares.
        patience: rounds without a better solution after which the search ends.
        chains: annealed on the surrogate in parallel in each round, half of them from the best solutions so far.
        elite: how many best solutions those start from.
        steps: steps of annealing.
        heat: the first temperature, as a share of the standard deviation of predicted distances.
    """

    first: int = 2_000
    rounds: int = 40
    asked: int = 500
    patience: int = 15
    chains: int = 500
    elite: int = 60
    steps: int = 2_000
    heat: float = 0.05


def search_by_learning(
    task: LearningTask,
    settings: LearningSettings,
    generator: torch.Generator,
    control: SearchControl | None = None,
) -> tuple[Tensor, float]:
    """Return the best solution found, and its distance.

    Args:
        task: what is searched.
        settings: how to search.
        generator: source of randomness, on the CPU.
        control: when to end; its `watch` receives the best solution after every round.
    """
    control = control or SearchControl()
    fresh = torch.unique(task.draw(settings.first), dim=0)
    seen, elite, unchanged = solution_hashes(fresh[:0]), None, 0
    for number in range(settings.rounds + 1):
        distances, residuals = task.compare(fresh)
        seen = torch.cat([seen, solution_hashes(fresh)])
        found = _Compared(fresh, distances.cpu(), residuals)
        best = found if elite is None else elite.joined(found)
        unchanged = unchanged + 1 if elite is not None and best.lowest >= elite.lowest else 0
        elite = best.first(settings.elite)
        control.report(elite.solutions[0], elite.lowest)
        if elite.lowest <= control.tolerance or unchanged >= settings.patience or number == settings.rounds:
            break
        weights = distances.clamp(min=control.tolerance + ZERO) ** -2  # near solutions matter most
        if not _learnt(task.surrogate, fresh, residuals, weights, control.deadline):
            break
        reached = _annealed(task, elite, settings, generator, control.deadline)
        fresh = reached[~torch.isin(solution_hashes(reached), seen)][: settings.asked]
        if not len(fresh):
            break
    assert elite is not None
    return elite.solutions[0], elite.lowest


@dataclass(frozen=True)
class _Compared:
    """Solutions `[count, places]`, their distances `[count]` and residuals `[count, entries]`."""

    solutions: Tensor
    distances: Tensor
    residuals: Tensor

    @property
    def lowest(self) -> float:
        return float(self.distances.min())

    def joined(self, other: _Compared) -> _Compared:
        return _Compared(
            torch.cat([self.solutions, other.solutions]),
            torch.cat([self.distances, other.distances]),
            torch.cat([self.residuals, other.residuals]),
        )

    def first(self, count: int) -> _Compared:
        """Return the best, best first."""
        return self.select(self.distances.argsort(stable=True)[:count])

    def select(self, rows: Tensor) -> _Compared:
        return _Compared(self.solutions[rows], self.distances[rows], self.residuals[rows.to(self.residuals.device)])


def _learnt(
    surrogate: TrainableSurrogate, solutions: Tensor, residuals: Tensor, weights: Tensor, deadline: Deadline
) -> bool:
    """Let a surrogate learn from comparisons, in parts if there is a deadline; False if that has passed."""
    step = LEARNT_AT_ONCE if deadline.limited else len(solutions)
    for first in range(0, len(solutions), step):
        if deadline.passed:
            return False
        part = slice(first, first + step)
        surrogate.learn(solutions[part], residuals[part], weights[part])
    return True


def _annealed(
    task: LearningTask,
    elite: _Compared,
    settings: LearningSettings,
    generator: torch.Generator,
    deadline: Deadline,
) -> Tensor:
    """Return different solutions that are predicted to be near the goal, nearest first.

    Half of the chains start from the best solutions so far; half of these correct the surrogate by its known error
    there.
    """
    prediction = task.surrogate.fit()
    device, half = prediction.base.device, settings.chains // 2
    old = elite.select(torch.arange(half) % len(elite.solutions))
    starts = torch.cat([old.solutions, task.draw(settings.chains - half)]).to(device)
    errors = prediction.base.new_zeros(len(starts), len(prediction.base))
    anchored = half // 2
    errors[:anchored] = TRUST * prediction.errors(starts[:anchored], old.residuals[:anchored])
    states, losses = _cooled(
        starts, prediction.corrected(errors), task.moves(device), settings, generator, deadline=deadline
    )
    return _different(states.cpu()[losses.cpu().argsort(stable=True)])


def _cooled(
    states: Tensor,
    score: SurrogatePrediction,
    propose: ProposeForOne,
    settings: LearningSettings,
    generator: torch.Generator,
    *,
    deadline: Deadline,
) -> tuple[Tensor, Tensor]:
    """Anneal chains `[chains, places]`; return the best state of each chain, and its predicted distance.

    Unlike in `anneal`, whose steps are passes through a network, a step costs next to nothing here: there is no tabu
    list, and every chain takes every step.
    """
    losses = score(states)
    best, lowest = states, losses
    heat = max(ZERO, settings.heat * float(losses.std(correction=0)))
    for step in range(settings.steps):
        if step % BLOCK == 0:
            if deadline.passed:
                break
            drawn = torch.rand(BLOCK, len(states), 1 + propose.numbers, generator=generator).to(states.device)
        numbers, temperature = drawn[step % BLOCK], COOLED ** (step / settings.steps)
        proposed = propose(states[None], numbers[None, :, None, 1:], temperature)[0, :, 0]
        reached = score(proposed)
        taken = reached - losses < -heat * temperature * numbers[:, 0].log()  # u < exp(−Δ/T)
        states, losses = torch.where(taken[:, None], proposed, states), torch.where(taken, reached, losses)
        better = losses < lowest
        best, lowest = torch.where(better[:, None], states, best), torch.where(better, losses, lowest)
    return best, lowest


def _different(solutions: Tensor) -> Tensor:
    """Return solutions in their order, without repetitions."""
    keys, which = torch.unique(solution_hashes(solutions), return_inverse=True)
    rows = torch.full_like(keys, len(solutions)).scatter_reduce(0, which, torch.arange(len(solutions)), "amin")
    return solutions[rows.sort().values]


@dataclass(frozen=True)
class PooledMoves:
    """Proposals for annealing: one of a pool of moves, or a repeated token replaced by another.

    Attributes:
        orders: the pool `[moves, places]`.
        kinds: how many different tokens there are.
    """

    orders: Tensor
    kinds: int

    @classmethod
    def draw(cls, features: SequenceFeatures, generator: torch.Generator, device: torch.device) -> PooledMoves:
        """Draw a pool for solutions with these features."""
        pool = (
            [move(features.places, POOL, generator) for move in MOVES] if features.places > 1 else [torch.zeros(1, 1)]
        )
        return cls(torch.cat(pool).long().to(device), features.kinds)

    @property
    def numbers(self) -> int:
        """How many random numbers a proposal needs: which move, whether and where to replace, by what."""
        return 3

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return one proposal for each start (see `ProposeForOne`)."""
        which, where, what = numbers[:, :, 0].double().unbind(dim=-1)
        moved = states.gather(-1, self.orders[(which * len(self.orders)).long()])
        places = states.shape[-1]
        if self.kinds < places:
            place = (where / REPLACING * places).long().clamp(max=places - 1)[..., None]
            repeated = (states == states.gather(-1, place)).sum(dim=-1) > 1
            replaced = states.scatter(-1, place, (what * self.kinds).long()[..., None])
            moved = torch.where(((where < REPLACING) & repeated)[..., None], replaced, moved)
        return moved[:, :, None]
