"""Gradient descent on guesses: Adam over embeddings, labels and dropout masks of many victims and starts at once.

Used by DLG, TAG, LAMP and GRAB through a `Cohort`, and by sieve for its proposals of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gradleak.matching import Candidates, Matcher
from gradleak.optimisation.guess import Guess, keep_better, rearrange_mask
from gradleak.search import rearrange
from gradleak.targets import Target

# A GPU's queue runs ahead of the clock: with a deadline, wait for the device every so many steps.
SYNCHRONISE_EVERY = 16
# Steps after which the learning rate is multiplied by `decay` (LAMP, appendix D).
DECAY_EVERY = 50

Watcher = Callable[[int, Guess], None]
"""Called after each step with its number and the best state so far."""
Penalty = Callable[[Tensor, Tensor], Tensor]
"""Takes embeddings `[V, starts, B, T, width]` and mask; gives what is added to the distance `[V, starts]`."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """The schedule of a descent; LAMP's appendix D gives the values for each attack.

    Attributes:
        steps: number of steps.
        lr: learning rate.
        optimizer: `adam` or `adamw`.
        decay: factor of the learning rate at every 50 steps.
        linear: decay the learning rate linearly to zero instead.
        clip: largest norm of the gradient by the embeddings of one guess; 0 for no limit.
        mask_speed: learning rate of dropout masks as a multiple of that of embeddings.
    """

    steps: int
    lr: float
    optimizer: Literal["adam", "adamw"] = "adam"
    decay: float = 1.0
    linear: bool = False
    clip: float = 0.0
    mask_speed: float = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if self.linear:
            return self.lr * (1 - step / self.steps)
        return self.lr * self.decay ** (step // DECAY_EVERY)


class Descender:
    """A descent that can be paused, inspected, rearranged and continued.

    It optimises the embeddings, labels that are logits, and the dropout masks of a guess, clamped to [0, 1].

    Args:
        target: the model.
        matcher: the distance to minimise.
        guess: the initial state.
        descent: the schedule.
        penalty: a term added to the distance.

    Attributes:
        best: the state of each start with the smallest loss so far.
        steps_done: steps taken.
    """

    def __init__(
        self, target: Target, matcher: Matcher, guess: Guess, descent: Descent, penalty: Penalty | None = None
    ) -> None:
        self.best = guess
        self.steps_done = 0
        self._target, self._matcher, self._descent, self._penalty = target, matcher, descent, penalty
        self._embeddings = guess.embeddings.clone()
        self._labels = guess.labels.clone()
        self._masks = {name: mask.clone() for name, mask in guess.dropout.items()}
        searched = [self._labels] if guess.labels.is_floating_point() else []
        self._variables = [self._embeddings, *searched, *self._masks.values()]
        move_label = rearrange if guess.labels_per_token else _stay
        move_masks = [partial(rearrange_mask, site=guess.sites[name]) for name in self._masks]
        self._moves: list[Callable[[Tensor, Tensor], Tensor]] = [rearrange, *[move_label] * len(searched), *move_masks]
        kind = torch.optim.AdamW if descent.optimizer == "adamw" else torch.optim.Adam
        groups = [{"params": self._variables[: 1 + len(searched)], "speed": 1.0}]
        if self._masks:
            groups.append({"params": list(self._masks.values()), "speed": descent.mask_speed})
        self._optimizer = kind(groups, lr=descent.lr)

    @property
    def now(self) -> Guess:
        """The present state, with the smallest losses so far."""
        best = self.best
        return Guess(best.slots, self._embeddings, self._labels, best.losses, self._masks, best.sites)

    def run(self, steps: int, watch: Watcher | None = None) -> Guess:
        """Take some steps, fewer if the deadline passes, and return the best state of each start so far."""
        for _ in range(steps):
            if self._out_of_time():
                break
            losses, gradients = self._gradients(self.now)
            self.best = keep_better(self.best, self.now, losses)
            gradients[0] = clip_each(gradients[0], self._descent.clip)
            for variable, gradient in zip(self._variables, gradients, strict=True):
                variable.grad = gradient
            for group in self._optimizer.param_groups:
                group["lr"] = self._descent.rate(self.steps_done) * group["speed"]
            self._optimizer.step()
            for mask in self._masks.values():
                mask.clamp_(0, 1)
            self.steps_done += 1
            if watch is not None:
                watch(self.steps_done, self.best)
        return self.best

    def _out_of_time(self) -> bool:
        deadline = self._matcher.deadline
        if deadline.limited and self._target.device.type == "cuda" and self.steps_done % SYNCHRONISE_EVERY == 0:
            torch.cuda.synchronize(self._target.device)
        return deadline.passed

    def rearrange(self, orders: Tensor) -> None:
        """Apply an order `[V, starts, B, T]` to the tokens and to the optimiser's moments of each token."""
        for variable, move in zip(self._variables, self._moves, strict=True):
            moments = self._optimizer.state[variable].values()
            for tensor in (variable, *(value for value in moments if value.shape == variable.shape)):
                tensor.copy_(move(tensor, orders))

    def select(self, chosen: Sequence[int], matcher: Matcher) -> Descender:
        """Return the descent of some victims at its present state, optimiser moments included.

        Args:
            chosen: the victims' indices.
            matcher: the distance to these victims' gradients.
        """
        index = torch.tensor(chosen, dtype=torch.long, device=self._embeddings.device)
        some = Descender(self._target, matcher, self.now.select(chosen), self._descent, self._penalty)
        some.best, some.steps_done = self.best.select(chosen), self.steps_done
        for variable, whole in zip(some._variables, self._variables, strict=True):
            some._optimizer.state[variable] = {
                key: value[index] if value.shape == whole.shape else value.clone()
                for key, value in self._optimizer.state[whole].items()
            }
        return some

    def _gradients(self, guess: Guess) -> tuple[Tensor, list[Tensor]]:
        """Return the losses, and their gradients by embeddings and, if optimised, label logits and dropout masks."""
        optimised = guess.labels.is_floating_point()
        logits = guess.labels.detach().requires_grad_(optimised)
        labels = logits.softmax(dim=-1) if optimised else logits
        inputs = guess.slots.fill(self._target, guess.embeddings).detach().requires_grad_()
        leaf = labels.detach().requires_grad_(optimised)
        masks = {name: mask.detach().requires_grad_() for name, mask in guess.dropout.items()}
        losses, by_leaf = self._matcher.gradients(Candidates(inputs, guess.slots.mask, leaf, masks))
        by_inputs = by_leaf["inputs"]
        if self._penalty is not None:
            extra = self._penalty(inputs, guess.slots.mask)
            by_inputs = by_inputs + torch.autograd.grad(extra.sum(), inputs)[0]
            losses = losses + extra.detach()
        gradients = [torch.where(guess.slots.free[..., None], by_inputs, 0.0)]
        if optimised:
            gradients.append(torch.autograd.grad(labels, logits, by_leaf["labels"])[0])
        return losses, [*gradients, *(by_leaf[f"dropout.{name}"] for name in masks)]


def descend(target: Target, matcher: Matcher, guess: Guess, descent: Descent, watch: Watcher | None = None) -> Guess:
    """Run a whole descent and return the best state of each start.

    Args:
        target: the model.
        matcher: the distance to minimise.
        guess: the initial state.
        descent: the schedule.
        watch: called after each step with its number and the best state so far.
    """
    return Descender(target, matcher, guess, descent).run(descent.steps, watch)


def clip_each(gradients: Tensor, most: float) -> Tensor:
    """Clip each guess's gradient norm independently; 0 for no limit."""
    if not most:
        return gradients
    norms = gradients.flatten(2).norm(dim=2)
    factor = (most / norms.clamp(min=1e-12)).clamp(max=1.0)
    return gradients * factor.view(*factor.shape, *[1] * (gradients.ndim - 2))


def _stay(tensor: Tensor, _: Tensor) -> Tensor:
    return tensor
