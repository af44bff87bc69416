"""Simulated annealing with a tabu list, for many problems and many starts of each side by side.

Nothing here knows what a state means: a problem is a function that scores states and one that proposes others. All
starts of all problems take their step together, so that each iteration is one call of either function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradleak.errors import GradleakError

Score = Callable[[Tensor], Tensor]
"""Takes states `[problems, starts, length]`, gives losses `[problems, starts]`."""

Watcher = Callable[[int, "Annealed"], None]
"""Called with the number of iterations done and the best states so far."""

# Random numbers are drawn, and the end is looked for, once for so many iterations.
BLOCK = 16


class Propose(Protocol):
    """Makes other states out of given ones."""

    @property
    def numbers(self) -> int:
        """How many random numbers a proposal takes."""
        ...

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[problems, starts, tries, length]`.

        Args:
            states: where the starts are `[problems, starts, length]`.
            numbers: uniform random numbers `[problems, starts, tries, numbers]`.
            heat: the temperature as a share of the first one, from 1 to 0.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How to anneal.

    Attributes:
        temperature: the first temperature.
        cooling: factor of the temperature after each iteration.
        iterations: the most iterations.
        failures: a start ends after more refused proposals than this share of the iterations.
        tabu: for how many iterations a state that any start has looked at is not looked at again.
        tries: how many proposals are made for each start; the first that is not tabu is scored.
    """

    temperature: float
    cooling: float
    iterations: int
    failures: float = 0.1
    tabu: int = 500
    tries: int = 4

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and 0 < self.cooling <= 1 and self.failures >= 0):
            raise GradleakError("annealing needs temperature above 0, cooling from 0 to 1 and failures of at least 0")
        if min(self.iterations, self.tabu, self.tries) < 1:
            raise GradleakError("annealing needs iterations, tabu and tries of at least 1")


@dataclass(frozen=True)
class Annealed:
    """The best state that each start has passed through `[problems, starts, length]`, and its loss."""

    states: Tensor
    losses: Tensor

    def better_of(self, states: Tensor, losses: Tensor) -> Annealed:
        """Return what is better, start by start."""
        better = losses < self.losses
        return Annealed(torch.where(better[..., None], states, self.states), torch.where(better, losses, self.losses))


class TabuList:
    """What was looked at of late, by all starts of a problem together.

    Args:
        states: the first states `[problems, starts, length]`.
        size: how many rounds of states are remembered.
    """

    def __init__(self, states: Tensor, size: int) -> None:
        problems, starts, length = states.shape
        keys = torch.randint(-(2**62), 2**62, (length,), generator=torch.Generator().manual_seed(0))
        self._keys = keys.to(states.device)
        self._seen = torch.full((problems, size, starts), torch.iinfo(torch.long).min, device=states.device)
        self._rounds = 0
        self.add(states)

    def add(self, states: Tensor) -> None:
        """Remember states, in place of the oldest."""
        self._seen[:, self._rounds % self._seen.shape[1]] = self._hash(states)
        self._rounds += 1

    def has(self, states: Tensor) -> Tensor:
        """Tell which of the states `[problems, starts, tries, length]` are remembered."""
        seen = self._seen[:, : self._rounds].flatten(1)[:, None, None]
        return (self._hash(states)[..., None] == seen).any(dim=-1)

    def _hash(self, states: Tensor) -> Tensor:
        return (states * self._keys).sum(dim=-1)  # integers wrap around, as a hash may


def anneal(
    states: Tensor,
    score: Score,
    propose: Propose,
    schedule: Schedule,
    generators: Sequence[torch.Generator],
    *,
    enough: Tensor | float = -math.inf,
    span: float = math.inf,
    watch: Watcher | None = None,
) -> Annealed:
    """Go from state to state, downhill always and uphill with probability exp(−Δ/temperature), never back.

    Args:
        states: where to start `[problems, starts, length]`, whole numbers.
        score: the loss of states.
        propose: makes other states out of states.
        schedule: how to anneal.
        generators: each problem's source of randomness, on the CPU.
        enough: a problem is solved when one of its starts has a loss this small `[problems]`.
        span: no two states' losses differ by more; a step that will be taken whatever the loss is then not scored.
        watch: called after each iteration.
    """
    tabu = TabuList(states, schedule.tabu)
    losses = score(states)
    best = Annealed(states, losses)
    known = True  # whether losses belong to states
    failed = torch.zeros_like(losses, dtype=torch.long)
    ended = (losses.amin(dim=1) <= enough)[:, None].expand_as(losses)
    limit = schedule.failures * schedule.iterations
    for iteration in range(schedule.iterations):
        step = iteration % BLOCK
        if not step:
            if bool(ended.all()):
                break
            chances, numbers = _draw(states, propose.numbers, schedule.tries, generators)
        temperature = schedule.temperature * schedule.cooling**iteration
        tolerated = -temperature * chances[step].log()  # a rise up to here is accepted: u < exp(−Δ/T)
        tried = propose(states, numbers[step], temperature / schedule.temperature)
        proposal, possible = _first(tried, ~tabu.has(tried) & ~ended[..., None])
        if float(tolerated.min()) >= span:
            taken, known = possible, False
        else:
            tabu.add(proposal)
            losses = losses if known else score(states)
            proposed, known = score(torch.where(possible[..., None], proposal, states)), True
            best = best.better_of(proposal, torch.where(possible, proposed, math.inf))
            taken = possible & (proposed - losses < tolerated.to(losses.device))
            losses = torch.where(taken, proposed, losses)
        states = torch.where(taken[..., None], proposal, states)
        failed = failed + ~taken
        ended = (failed > limit) | (best.losses.amin(dim=1) <= enough)[:, None]
        if watch is not None:
            watch(iteration + 1, best)
    return best if known else best.better_of(states, score(states))


def _draw(states: Tensor, numbers: int, tries: int, generators: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """Draw what the next iterations need, each problem's from its own stream.

    Returns:
        One number for each start `[iterations, problems, starts]`, on the CPU, and `numbers` for each of its proposals
        `[iterations, problems, starts, tries, numbers]`, on the device of the states.
    """
    starts = states.shape[1]
    drawn = torch.stack([torch.rand(BLOCK, starts, 1 + tries * numbers, generator=g) for g in generators], dim=1)
    rest = drawn[..., 1:].reshape(*drawn.shape[:3], tries, numbers)
    return drawn[..., 0].double(), rest.to(states.device)


def _first(tried: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first allowed state of each start `[problems, starts, length]`, and whether there is one."""
    choice = allowed.int().argmax(dim=-1)[..., None, None].expand(*tried.shape[:2], 1, tried.shape[-1])
    return tried.gather(2, choice)[:, :, 0], allowed.any(dim=-1)
