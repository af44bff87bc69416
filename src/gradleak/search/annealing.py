"""Simulated annealing with a tabu list, for many problems and many starts of each in one batch.

The meaning of a state is left to the caller: a task is a function that scores states and one that proposes others. All
starts of all problems take each step together, which makes an iteration one call of either function. Used by EDR.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Deadline
from gradleak.hashing import solution_hashes
from gradleak.search.proposals import Propose

ScoreStates = Callable[[Tensor], Tensor]
"""Return the losses `[problems, starts]` of states `[problems, starts, length]`."""

WatchAnnealing = Callable[[int, "Annealed"], None]
"""Receive the number of iterations done and the best states so far."""

Retire = Callable[[Sequence[int]], None]
"""Receive the indices of the problems that remain, among those that were there before."""

# Random numbers are drawn, and finished problems looked for, once in so many iterations.
BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class AnnealingTask:
    """What is annealed.

    Attributes:
        score: the loss of states, of all starts or of some.
        propose: makes other states out of states.
        span: an upper bound of the difference of two states' losses. A step that is accepted whatever its loss is then
            not scored.
        watch: called after each iteration.
        retire: called when finished problems are removed from the batch, which happens as soon as they are half of it:
            from then on `score`, `propose` and `watch` deal with the remaining ones alone. Without it, finished
            problems stay in the batch.
    """

    score: ScoreStates
    propose: Propose
    span: float = math.inf
    watch: WatchAnnealing | None = None
    retire: Retire | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How to anneal.

    Attributes:
        temperature: the first temperature.
        cooling: factor of the temperature after each iteration.
        iterations: the most iterations.
        failures: a start ends after more rejected proposals than this share of the iterations.
        tabu: for how many iterations a state that any start has scored is not scored again.
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
    """The best state that each start has reached `[problems, starts, length]`, and its loss `[problems, starts]`."""

    states: Tensor
    losses: Tensor

    def better_of(self, states: Tensor, losses: Tensor) -> Annealed:
        """Return the better of two states, start by start."""
        better = losses < self.losses
        return Annealed(torch.where(better[..., None], states, self.states), torch.where(better, losses, self.losses))

    def select(self, problems: Sequence[int]) -> Annealed:
        """Return the results of some of the problems."""
        return Annealed(self.states[problems], self.losses[problems])

    def updated(self, problems: Sequence[int], found: Annealed) -> Annealed:
        """Return a copy with the results of some of the problems replaced."""
        where = torch.tensor(problems, device=self.losses.device)
        return Annealed(self.states.index_copy(0, where, found.states), self.losses.index_copy(0, where, found.losses))


class TabuList:
    """The states that were scored recently, by all starts of a problem together.

    Args:
        states: the first states `[problems, starts, length]`.
        size: how many rounds of states are kept.
    """

    def __init__(self, states: Tensor, size: int) -> None:
        problems, starts, _ = states.shape
        self._seen = torch.full((problems, size, starts), torch.iinfo(torch.long).min, device=states.device)
        self._rounds = 0
        self.add(states)

    def add(self, states: Tensor) -> None:
        """Add states, in place of the oldest."""
        self._seen[:, self._rounds % self._seen.shape[1]] = solution_hashes(states)
        self._rounds += 1

    def select(self, problems: Sequence[int]) -> None:
        """Keep some of the problems alone."""
        self._seen = self._seen[problems]

    def has(self, states: Tensor) -> Tensor:
        """Tell which of the states `[problems, starts, tries, length]` are in the list."""
        seen = self._seen[:, : self._rounds].flatten(1)[:, None, None]
        return (solution_hashes(states)[..., None] == seen).any(dim=-1)


def anneal(
    states: Tensor,
    task: AnnealingTask,
    schedule: Schedule,
    generators: Sequence[torch.Generator],
    *,
    tolerance: Tensor | float = -math.inf,
    deadline: Deadline | None = None,
) -> Annealed:
    """Return the best state of each start, accepting rises with probability exp(−Δ/temperature) and no state twice.

    Args:
        states: where to start `[problems, starts, length]`, whole numbers.
        task: what is minimised, and by which moves.
        schedule: how to anneal.
        generators: each problem's source of randomness, on the CPU.
        tolerance: a problem has converged when one of its starts has a loss this small `[problems]`.
        deadline: when to end at the latest; states that were not scored in time have an infinite loss.
    """
    deadline = deadline or Deadline()
    members = list(range(len(states)))
    walk = _Walk(states, task, schedule, generators, torch.as_tensor(tolerance, device=states.device))
    found = walk.best
    for iteration in range(schedule.iterations):
        if deadline.passed:
            return found.updated(members, walk.best)
        step = iteration % BLOCK
        if not step:
            going = walk.unfinished()
            if not going:
                break
            if task.retire is not None and 2 * len(going) <= len(members):
                found = found.updated(members, walk.best)
                members = [members[place] for place in going]
                task.retire(going)
                going = walk.select(going)
            chances, numbers = walk.draw(going)
        temperature = schedule.temperature * schedule.cooling**iteration
        tolerated = -temperature * chances[step].log()  # a rise up to here is accepted: u < exp(−Δ/T)
        tried = task.propose(walk.states, numbers[step], temperature / schedule.temperature)
        walk.step(tried, tolerated)
        if task.watch is not None:
            task.watch(iteration + 1, walk.best)
    walk.score_unscored()
    return found.updated(members, walk.best)


class _Walk:
    """The present and the best states of all starts of all problems."""

    def __init__(
        self,
        states: Tensor,
        task: AnnealingTask,
        schedule: Schedule,
        generators: Sequence[torch.Generator],
        tolerance: Tensor,
    ) -> None:
        self.states, self.losses = states, task.score(states)
        self.best = Annealed(states, self.losses)
        self.generators = list(generators)
        self._task, self._tabu = task, TabuList(states, schedule.tabu)
        self._tries, self._limit = schedule.tries, schedule.failures * schedule.iterations
        self._tolerance = tolerance.expand(len(states))
        self._failed = torch.zeros_like(self.losses, dtype=torch.long)
        self._known = True  # whether losses belong to states
        self._unscored = torch.zeros(len(states), dtype=torch.bool)  # problems whose last steps were not scored
        self._going = torch.ones(len(states), dtype=torch.bool)

    @property
    def finished(self) -> Tensor:
        """Which starts have failed too often, or belong to a problem that has converged `[problems, starts]`."""
        return (self._failed > self._limit) | (self.best.losses.amin(dim=1) <= self._tolerance)[:, None]

    def unfinished(self) -> list[int]:
        """Return the problems of which not all starts are finished."""
        problems: list[int] = (~self.finished.all(dim=1)).nonzero().flatten().tolist()
        return problems

    def select(self, problems: list[int]) -> list[int]:
        """Continue with some of the problems alone; return their new indices."""
        self.states, self.losses, self.best = self.states[problems], self.losses[problems], self.best.select(problems)
        self.generators = [self.generators[problem] for problem in problems]
        self._tolerance, self._failed = self._tolerance[problems], self._failed[problems]
        self._unscored = self._unscored[problems]
        self._tabu.select(problems)
        return list(range(len(problems)))

    def draw(self, going: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Draw the random numbers of the next iterations, each problem's from its own stream; none if it has ended.

        Returns:
            One number for each start `[iterations, problems, starts]`, on the CPU, and those of its proposals
            `[iterations, problems, starts, tries, numbers]`, on the device of the states.
        """
        problems, starts = self.losses.shape
        numbers = self._task.propose.numbers
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

    def step(self, tried: Tensor, tolerated: Tensor) -> None:
        """Move every start to the first of its proposals that is not tabu, if that is accepted."""
        proposal, possible = _first(tried, ~self._tabu.has(tried) & ~self.finished[..., None])
        self._tabu.add(proposal)
        certain = (tolerated >= self._task.span).all(dim=1)  # [problems]
        if bool(certain.all()):
            taken, self._known = possible, False
        else:
            self.score_unscored(~certain)
            taken = self._accepted(proposal, possible, tolerated, certain)
        self._unscored = torch.where(self._going, certain, self._unscored)
        self.states = torch.where(taken[..., None], proposal, self.states)
        self._failed = self._failed + ~taken

    def score_unscored(self, problems: Tensor | bool = True) -> None:
        """Score the present states of problems whose last steps were taken without scoring them."""
        unscored = self._unscored & problems
        if bool(unscored.any()):
            self.losses, self._known = self.losses if self._known else self._task.score(self.states), True
            scored = unscored[:, None].to(self.losses.device)
            self.best = self.best.better_of(self.states, torch.where(scored, self.losses, math.inf))

    def _accepted(self, proposal: Tensor, possible: Tensor, tolerated: Tensor, certain: Tensor) -> Tensor:
        """Score proposals, and return which of them are accepted `[problems, starts]`."""
        scored = _starts_to_score(possible)
        if not len(scored):
            return possible
        proposed = torch.full_like(self.losses, math.inf)
        proposed[:, scored] = self._task.score(torch.where(possible[..., None], proposal, self.states)[:, scored])
        certain = certain[:, None].to(possible.device)
        self.best = self.best.better_of(proposal, torch.where(possible & ~certain, proposed, math.inf))
        taken = possible & (certain | (proposed - self.losses < tolerated.to(self.losses.device)))
        self.losses = torch.where(taken, proposed, self.losses)
        return taken


def _starts_to_score(possible: Tensor) -> Tensor:
    """Return the starts that have a proposal; all on a GPU, which scores them faster than it reports which have one."""
    if possible.device.type != "cpu":
        return torch.arange(possible.shape[1], device=possible.device)
    return possible.any(dim=0).nonzero().flatten()


def _first(tried: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first allowed state of each start `[problems, starts, length]`, and whether there is one."""
    choice = allowed.int().argmax(dim=-1)[..., None, None].expand(*tried.shape[:2], 1, tried.shape[-1])
    return tried.gather(2, choice)[:, :, 0], allowed.any(dim=-1)
