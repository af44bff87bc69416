"""Search by learning: a surrogate foretells which solutions are good; only those are scored, which teaches it more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.search.genetic import Watch
from gradleak.search.moves import Move, move_subsequence, move_token, swap
from gradleak.search.score_cache import hashes
from gradleak.search.surrogate import Features, Foretold

Draw = Callable[[int], Tensor]
"""Draws so many random solutions `[count, places]`."""

Compare = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Takes solutions; gives their distances `[count]`, and what each still lacks `[count, entries]`."""

MOVES: tuple[Move, ...] = (swap, move_token, move_subsequence)
COOLED = 0.1  # the last temperature as a share of the first
TRUST = 0.7  # share of an error that is expected nearby, too
ZERO = 1e-9
BLOCK = 64  # steps whose random numbers are drawn at once
POOL = 4_096  # moves of each kind that a round draws from
TAUGHT = 256  # solutions that are taught at once where there is a deadline
REPLACING = 0.1  # share of proposals that put another token in place of a repeated one


class Propose(Protocol):
    """Makes other solutions out of given ones, as `annealing.Propose` does, for one problem and one try."""

    @property
    def numbers(self) -> int:
        """How many random numbers a proposal takes."""
        ...

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[1, chains, 1, places]`, from states `[1, chains, places]`."""
        ...


Moves = Callable[[torch.device], Propose]
"""Draws what a round of annealing may propose, on a device."""


class Learner(Protocol):
    """Foretells distances, and is taught by comparisons: a `Surrogate` or what works like one."""

    def learn(self, solutions: Tensor, lacking: Tensor, weights: Tensor) -> None:
        """Take more solutions into account (see `Surrogate.learn`)."""
        ...

    def fit(self) -> Foretold:
        """Return what was learnt."""
        ...


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How to search by learning.

    Attributes:
        first: random solutions that are compared at first.
        rounds: how often what was learnt is used, at most.
        asked: the most solutions that a round compares.
        patience: rounds without a better solution after which it ends.
        chains: annealed on the surrogate side by side in each round, half of them from the best solutions so far.
        elite: how many best solutions those start from.
        steps: how long they are annealed.
        heat: their first temperature, as a share of how foretold distances vary.
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
    draw: Draw,
    compare: Compare,
    learner: Learner,
    moves: Moves,
    settings: Learning,
    generator: torch.Generator,
    *,
    enough: float = 0.0,
    watch: Watch | None = None,
    deadline: Deadline | None = None,
) -> tuple[Tensor, float]:
    """Return the best solution found, and its distance.

    Args:
        draw: where it starts.
        compare: what is minimised, and what it depends on.
        learner: foretells what was not compared.
        moves: lead from solutions to others.
        settings: how to search.
        generator: source of randomness, on the CPU.
        enough: a distance that needs no improvement.
        watch: told the best solution after every round.
        deadline: when to end at the latest; what there was no time to compare has an infinite distance.
    """
    deadline = deadline or Deadline()
    fresh = torch.unique(draw(settings.first), dim=0)
    seen, elite, unchanged = hashes(fresh[:0]), None, 0
    for number in range(settings.rounds + 1):
        distances, lacking = compare(fresh)
        seen = torch.cat([seen, hashes(fresh)])
        found = _Compared(fresh, distances.cpu(), lacking)
        best = found if elite is None else elite.joined(found)
        unchanged = unchanged + 1 if elite is not None and best.lowest >= elite.lowest else 0
        elite = best.first(settings.elite)
        if watch is not None:
            watch(elite.solutions[0], elite.lowest)
        if elite.lowest <= enough or unchanged >= settings.patience or number == settings.rounds:
            break
        weights = distances.clamp(min=enough + ZERO) ** -2  # what is near matters most
        step = TAUGHT if deadline.limited else len(fresh)
        for first in range(0, len(fresh), step):
            if deadline.passed:
                return elite.solutions[0], elite.lowest
            part = slice(first, first + step)
            learner.learn(fresh[part], lacking[part], weights[part])
        reached = _annealed(learner.fit(), elite, draw, moves, settings, generator, deadline)
        fresh = reached[~torch.isin(hashes(reached), seen)][: settings.asked]
        if not len(fresh):
            break
    assert elite is not None
    return elite.solutions[0], elite.lowest


@dataclass(frozen=True)
class _Compared:
    """Solutions `[count, places]`, their distances `[count]` and what they lack `[count, entries]`."""

    solutions: Tensor
    distances: Tensor
    lacking: Tensor

    @property
    def lowest(self) -> float:
        return float(self.distances.min())

    def joined(self, other: _Compared) -> _Compared:
        return _Compared(
            torch.cat([self.solutions, other.solutions]),
            torch.cat([self.distances, other.distances]),
            torch.cat([self.lacking, other.lacking]),
        )

    def first(self, count: int) -> _Compared:
        """Return the best, best first."""
        return self.at(self.distances.argsort(stable=True)[:count])

    def at(self, rows: Tensor) -> _Compared:
        return _Compared(self.solutions[rows], self.distances[rows], self.lacking[rows.to(self.lacking.device)])


def _annealed(
    foretold: Foretold,
    elite: _Compared,
    draw: Draw,
    moves: Moves,
    settings: Learning,
    generator: torch.Generator,
    deadline: Deadline,
) -> Tensor:
    """Return solutions that should be near the goal, none twice, the nearest first.

    Half of the chains start from the best solutions so far; half of these correct the surrogate by what is known there.
    """
    device, half = foretold.base.device, settings.chains // 2
    old = elite.at(torch.arange(half) % len(elite.solutions))
    starts = torch.cat([old.solutions, draw(settings.chains - half)]).to(device)
    errors = foretold.base.new_zeros(len(starts), len(foretold.base))
    anchored = half // 2
    errors[:anchored] = TRUST * foretold.errors(starts[:anchored], old.lacking[:anchored])
    states, losses = _cooled(starts, foretold.corrected(errors), moves(device), settings, generator, deadline)
    return _different(states.cpu()[losses.cpu().argsort(stable=True)])


def _cooled(
    states: Tensor,
    score: Foretold,
    propose: Propose,
    settings: Learning,
    generator: torch.Generator,
    deadline: Deadline,
) -> tuple[Tensor, Tensor]:
    """Anneal chains `[chains, places]`; return the best that each has passed through, and what is foretold of it.

    A step costs next to nothing here, so that nothing is remembered and every chain takes every step: unlike in
    `anneal`, whose steps are passes through a network.
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
    """Return solutions without those that stood before."""
    keys, which = torch.unique(hashes(solutions), return_inverse=True)
    rows = torch.full_like(keys, len(solutions)).scatter_reduce(0, which, torch.arange(len(solutions)), "amin")
    return solutions[rows.sort().values]


@dataclass(frozen=True)
class PooledMoves:
    """Proposals for annealing: one of a pool of moves, or another token in place of one that is repeated.

    Attributes:
        orders: the pool `[moves, places]`.
        kinds: how many kinds of tokens there are.
    """

    orders: Tensor
    kinds: int

    @classmethod
    def draw(cls, features: Features, generator: torch.Generator, device: torch.device) -> PooledMoves:
        """Draw a pool for solutions of so many places."""
        pool = (
            [move(features.places, POOL, generator) for move in MOVES] if features.places > 1 else [torch.zeros(1, 1)]
        )
        return cls(torch.cat(pool).long().to(device), features.kinds)

    @property
    def numbers(self) -> int:
        """How many random numbers a proposal takes: which move, whether and where to replace, by what."""
        return 3

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return one proposal for each start (see `Propose`)."""
        which, where, what = numbers[:, :, 0].double().unbind(dim=-1)
        moved = states.gather(-1, self.orders[(which * len(self.orders)).long()])
        places = states.shape[-1]
        if self.kinds < places:
            place = (where / REPLACING * places).long().clamp(max=places - 1)[..., None]
            repeated = (states == states.gather(-1, place)).sum(dim=-1) > 1
            replaced = states.scatter(-1, place, (what * self.kinds).long()[..., None])
            moved = torch.where(((where < REPLACING) & repeated)[..., None], replaced, moved)
        return moved[:, :, None]
