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
from gradleak.exchange import Deadline

Score = Callable[[Tensor], Tensor]
"""Takes states `[problems, starts, length]`, gives losses `[problems, starts]`."""

Watcher = Callable[[int, "Annealed"], None]
"""Called with the number of iterations done and the best states so far."""

Leave = Callable[[Sequence[int]], None]
"""Called with the numbers of the problems that go on, counted among those that were there before."""

# Random numbers are drawn, and the end is looked for, once for so many iterations.
BLOCK = 16


class Propose(Protocol):
    """Makes other states out of given ones."""

    @property
    def numbers(self) -> int | Sequence[int]:
        """How many random numbers a proposal takes, or how many it takes for each problem."""
        ...

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[problems, starts, tries, length]`.

        Args:
            states: where the starts are `[problems, starts, length]`.
            numbers: uniform random numbers `[problems, starts, tries, numbers]`; zeros after those of a problem that
                takes fewer.
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

    def of(self, problems: Sequence[int]) -> Annealed:
        """Return what was found for some of the problems."""
        return Annealed(self.states[problems], self.losses[problems])

    def put(self, problems: Sequence[int], found: Annealed) -> Annealed:
        """Return this with something else in place of some of the problems."""
        where = torch.tensor(problems, device=self.losses.device)
        return Annealed(self.states.index_copy(0, where, found.states), self.losses.index_copy(0, where, found.losses))


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

    def keep(self, problems: Sequence[int]) -> None:
        """Forget all other problems."""
        self._seen = self._seen[problems]

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
    leave: Leave | None = None,
    deadline: Deadline | None = None,
) -> Annealed:
    """Go from state to state, downhill always and uphill with probability exp(−Δ/temperature), never back.

    Args:
        states: where to start `[problems, starts, length]`, whole numbers.
        score: the loss of states, of all starts or of some.
        propose: makes other states out of states.
        schedule: how to anneal.
        generators: each problem's source of randomness, on the CPU.
        enough: a problem is solved when one of its starts has a loss this small `[problems]`.
        span: no two states' losses differ by more; a step that will be taken whatever the loss is then not scored.
        watch: called after each iteration.
        leave: called when problems that have ended leave the others, as soon as they are half of all: `score`,
            `propose` and `watch` have to do with the rest alone from then on. Without it they stay.
        deadline: when to end at the latest; the loss of what there was no time for is infinite.
    """
    deadline = deadline or Deadline()
    members = list(range(len(states)))
    walk = _Walk(states, score(states), schedule, generators, torch.as_tensor(enough, device=states.device))
    found = walk.best
    for iteration in range(schedule.iterations):
        if deadline.passed:
            return found.put(members, walk.best)
        step = iteration % BLOCK
        if not step:
            going = (~walk.ended.all(dim=1)).nonzero().flatten().tolist()
            if not going:
                break
            if leave is not None and 2 * len(going) <= len(members):
                found = found.put(members, walk.best)
                members = [members[place] for place in going]
                leave(going)
                going = walk.keep(going)
            chances, numbers = walk.draw(propose.numbers, going)
        temperature = schedule.temperature * schedule.cooling**iteration
        tolerated = -temperature * chances[step].log()  # a rise up to here is accepted: u < exp(−Δ/T)
        tried = propose(walk.states, numbers[step], temperature / schedule.temperature)
        walk.step(tried, tolerated, span, score)
        if watch is not None:
            watch(iteration + 1, walk.best)
    walk.look(score)
    return found.put(members, walk.best)


class _Walk:
    """Where the starts of all problems are, and how they got there."""

    def __init__(
        self,
        states: Tensor,
        losses: Tensor,
        schedule: Schedule,
        generators: Sequence[torch.Generator],
        enough: Tensor,
    ) -> None:
        self.states, self.losses, self.best = states, losses, Annealed(states, losses)
        self.generators = list(generators)
        self._tabu = TabuList(states, schedule.tabu)
        self._tries, self._limit = schedule.tries, schedule.failures * schedule.iterations
        self._enough = enough.expand(len(states))
        self._failed = torch.zeros_like(losses, dtype=torch.long)
        self._known = True  # whether losses belong to states
        self._unseen = torch.zeros(len(states), dtype=torch.bool)  # whose last steps were taken without a look
        self._going = torch.ones(len(states), dtype=torch.bool)

    @property
    def ended(self) -> Tensor:
        """Which starts have failed too often, or belong to a problem that is solved `[problems, starts]`."""
        return (self._failed > self._limit) | (self.best.losses.amin(dim=1) <= self._enough)[:, None]

    def keep(self, problems: list[int]) -> list[int]:
        """Go on with some of the problems alone; return their new numbers."""
        self.states, self.losses, self.best = self.states[problems], self.losses[problems], self.best.of(problems)
        self.generators = [self.generators[problem] for problem in problems]
        self._enough, self._failed = self._enough[problems], self._failed[problems]
        self._unseen = self._unseen[problems]
        self._tabu.keep(problems)
        return list(range(len(problems)))

    def draw(self, numbers: int | Sequence[int], going: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Draw what the next iterations need, each problem's from its own stream; nothing for one that has ended.

        Returns:
            One number for each start `[iterations, problems, starts]`, on the CPU, and `numbers` for each of its
            proposals `[iterations, problems, starts, tries, numbers]`, on the device of the states.
        """
        problems, starts = self.losses.shape
        sizes = [numbers] * problems if isinstance(numbers, int) else numbers
        chances = torch.zeros(BLOCK, problems, starts, dtype=torch.float64)
        rest = torch.zeros(BLOCK, problems, starts, self._tries, max(sizes))
        self._going = torch.zeros(problems, dtype=torch.bool).index_fill(0, torch.tensor(going), True)
        for problem in going:
            size = sizes[problem]
            drawn = torch.rand(BLOCK, starts, 1 + self._tries * size, generator=self.generators[problem])
            chances[:, problem] = drawn[..., 0]
            rest[:, problem, ..., :size] = drawn[..., 1:].reshape(BLOCK, starts, self._tries, size)
        return chances, rest.to(self.states.device)

    def step(self, tried: Tensor, tolerated: Tensor, span: float, score: Score) -> None:
        """Let every start take the first of its proposals that is not tabu, if it is accepted."""
        proposal, possible = _first(tried, ~self._tabu.has(tried) & ~self.ended[..., None])
        self._tabu.add(proposal)
        certain = (tolerated >= span).all(dim=1)  # [problems]
        if bool(certain.all()):
            taken, self._known = possible, False
        else:
            self.look(score, ~certain)
            taken = self._accepted(proposal, possible, tolerated, certain, score)
        self._unseen = torch.where(self._going, certain, self._unseen)
        self.states = torch.where(taken[..., None], proposal, self.states)
        self._failed = self._failed + ~taken

    def look(self, score: Score, problems: Tensor | bool = True) -> None:
        """Score where problems are that went on without a look."""
        unseen = self._unseen & problems
        if bool(unseen.any()):
            self.losses, self._known = self.losses if self._known else score(self.states), True
            seen = unseen[:, None].to(self.losses.device)
            self.best = self.best.better_of(self.states, torch.where(seen, self.losses, math.inf))

    def _accepted(self, proposal: Tensor, possible: Tensor, tolerated: Tensor, certain: Tensor, score: Score) -> Tensor:
        """Score proposals, and tell which starts go there `[problems, starts]`."""
        asked = _asked(possible)
        if not len(asked):
            return possible
        proposed = torch.full_like(self.losses, math.inf)
        proposed[:, asked] = score(torch.where(possible[..., None], proposal, self.states)[:, asked])
        certain = certain[:, None].to(possible.device)
        self.best = self.best.better_of(proposal, torch.where(possible & ~certain, proposed, math.inf))
        taken = possible & (certain | (proposed - self.losses < tolerated.to(self.losses.device)))
        self.losses = torch.where(taken, proposed, self.losses)
        return taken


def _asked(possible: Tensor) -> Tensor:
    """Return the starts that have a proposal to be scored. A GPU scores them all sooner than it would tell."""
    if possible.device.type != "cpu":
        return torch.arange(possible.shape[1], device=possible.device)
    return possible.any(dim=0).nonzero().flatten()


def _first(tried: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first allowed state of each start `[problems, starts, length]`, and whether there is one."""
    choice = allowed.int().argmax(dim=-1)[..., None, None].expand(*tried.shape[:2], 1, tried.shape[-1])
    return tried.gather(2, choice)[:, :, 0], allowed.any(dim=-1)
