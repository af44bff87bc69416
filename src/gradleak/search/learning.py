"""Search by learning: a surrogate foretells which solutions are good; only those are scored, which teaches it more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.search.annealing import Schedule, anneal
from gradleak.search.genetic import Watch
from gradleak.search.memory import hashes
from gradleak.search.moves import Move, move_subsequence, move_token, swap
from gradleak.search.surrogate import Features, Foretold, Surrogate

Draw = Callable[[int], Tensor]
"""Draws so many random solutions `[count, places]`."""

Compare = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Takes solutions; gives their distances `[count]`, and what each still lacks `[count, entries]`."""

MOVES: tuple[Move, ...] = (swap, move_token, move_subsequence)
COOLED = 0.1  # the last temperature as a share of the first
TRUST = 0.7  # share of an error that is expected nearby, too
ZERO = 1e-9
POOL = 4_096  # moves of each kind that a round draws from
REPLACING = 0.1  # share of proposals that put another token in place of a repeated one


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
        reach: how far apart tokens are whose order the surrogate looks at.
        ridge: see `Surrogate`.
    """

    first: int = 2_000
    rounds: int = 40
    asked: int = 500
    patience: int = 15
    chains: int = 500
    elite: int = 60
    steps: int = 2_000
    heat: float = 0.05
    reach: int = 2
    ridge: float = 3.0


def search_by_learning(
    draw: Draw,
    compare: Compare,
    kinds: int,
    settings: Learning,
    generator: torch.Generator,
    *,
    enough: float = 0.0,
    watch: Watch | None = None,
) -> tuple[Tensor, float]:
    """Return the best solution found, and its distance.

    Args:
        draw: where it starts.
        compare: what is minimised, and what it depends on.
        kinds: how many kinds of tokens there are.
        settings: how to search.
        generator: source of randomness, on the CPU.
        enough: a distance that needs no improvement.
        watch: told the best solution after every round.
    """
    fresh = torch.unique(draw(settings.first), dim=0)
    surrogate = Surrogate(Features(fresh.shape[1], kinds, settings.reach), settings.ridge)
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
        surrogate.learn(fresh, lacking, distances.clamp(min=enough + ZERO) ** -2)  # what is near matters most
        reached = _annealed(surrogate.fit(), elite, draw, settings, generator)
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
    foretold: Foretold, elite: _Compared, draw: Draw, settings: Learning, generator: torch.Generator
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
    schedule = Schedule(
        temperature=max(ZERO, settings.heat * float(foretold(starts).std())),
        cooling=COOLED ** (1 / settings.steps),
        iterations=settings.steps,
        failures=1.0,
        tabu=1,
        tries=1,
    )
    proposals = PooledMoves.draw(foretold.features, generator, device)
    reached = anneal(starts[None], foretold.corrected(errors), proposals, schedule, [generator])
    return _different(reached.states[0].cpu()[reached.losses[0].cpu().argsort(stable=True)])


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
