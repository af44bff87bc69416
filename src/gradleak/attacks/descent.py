"""Gradient descent on guesses: many victims, starts and labels in one optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradleak.attacks.guesses import Slots, pick_starts
from gradleak.matching import Candidates, Matcher
from gradleak.search import rearrange
from gradleak.targets import Target

Watcher = Callable[[int, "Guess"], None]
Penalty = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Descent:
    """How to descend: LAMP's appendix D gives the values for each attack.

    Attributes:
        steps: number of steps.
        lr: learning rate.
        optimizer: `adam` or `adamw`.
        decay: factor of the learning rate at every `decay_every` steps.
        decay_every: see `decay`.
        linear: let the learning rate fall to zero in a straight line instead.
        clip: greatest norm of one guess's gradient; 0 for no limit.
    """

    steps: int
    lr: float
    optimizer: Literal["adam", "adamw"] = "adam"
    decay: float = 1.0
    decay_every: int = 50
    linear: bool = False
    clip: float = 0.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if self.linear:
            return self.lr * (1 - step / self.steps)
        return self.lr * self.decay ** (step // self.decay_every)


@dataclass(frozen=True)
class Guess:
    """Where a descent is: embeddings `[V, starts, B, T, width]`, labels as classes or logits, and losses.

    Attributes:
        slots: the frame that the embeddings stand in.
        embeddings: word embeddings.
        labels: classes `[V, starts, B]`; or, where they are searched too, logits `[V, starts, B, (T,) classes]`.
        losses: the best distance of each start so far `[V, starts]`.
    """

    slots: Slots
    embeddings: Tensor
    labels: Tensor
    losses: Tensor

    def candidates(self, target: Target) -> Candidates:
        """Return the guess as candidates of the engine."""
        labels = self.labels.softmax(dim=-1) if self.labels.is_floating_point() else self.labels
        return Candidates(self.slots.fill(target, self.embeddings), self.slots.mask, labels)

    def victim(self, number: int) -> Guess:
        """Return one victim's guess."""
        parts = (tensor[number : number + 1] for tensor in (self.embeddings, self.labels, self.losses))
        return Guess(self.slots.victim(number), *parts)

    def starts(self, chosen: Tensor) -> Guess:
        """Return for each victim the chosen starts `[victims, kept]`."""
        parts = (pick_starts(tensor, chosen) for tensor in (self.embeddings, self.labels, self.losses))
        return Guess(self.slots.starts(chosen), *parts)

    def best_starts(self, count: int) -> Guess:
        """Return for each victim the `count` starts with the smallest losses."""
        return self.starts(self.losses.argsort(dim=1)[:, :count])


def random_guess(
    target: Target, slots: Slots, labels: Tensor | None, generators: Sequence[torch.Generator], scale: float = 1.0
) -> Guess:
    """Return a guess with Gaussian embeddings, each victim's from its own stream; unknown labels start even.

    Numbers are drawn for the tokens that a start has, so that a victim's do not depend on how long others are.
    """
    embeddings = torch.zeros(*slots.ids.shape, target.word_embeddings.shape[1])
    tokens = slots.mask.any(dim=2).sum(dim=2).tolist()  # [victims][starts]: of the longest sequence
    for victim, generator in enumerate(generators):
        for start, length in enumerate(tokens[victim]):
            shape = (slots.ids.shape[2], length, embeddings.shape[-1])
            embeddings[victim, start, :, :length] = torch.randn(shape, generator=generator)
    embeddings = embeddings.to(target.device, target.dtype) * scale
    if labels is None:
        per_token = slots.ids.shape if target.task == "causal-lm" else slots.ids.shape[:3]
        labels = torch.zeros(*per_token, target.num_labels, device=target.device, dtype=target.dtype)
    losses = torch.full(slots.ids.shape[:2], torch.inf, dtype=torch.float64, device=target.device)
    return Guess(slots, embeddings, labels, losses)


class Descender:
    """A descent that can be stopped, looked at, rearranged, and continued.

    Args:
        target: the model.
        matcher: the distance to go down.
        guess: where to start.
        descent: how.
        penalty: added to the distance: takes embeddings `[V, starts, B, T, width]` and mask, gives `[V, starts]`.
    """

    def __init__(
        self, target: Target, matcher: Matcher, guess: Guess, descent: Descent, penalty: Penalty | None = None
    ) -> None:
        self.best = guess
        self.steps_done = 0
        self._target, self._matcher, self._descent, self._penalty = target, matcher, descent, penalty
        self._labels = guess.labels
        searched = guess.labels.is_floating_point()
        self._variables = [guess.embeddings.clone(), *([guess.labels.clone()] if searched else [])]
        kind = torch.optim.AdamW if descent.optimizer == "adamw" else torch.optim.Adam
        self._optimizer = kind(self._variables, lr=descent.lr)

    @property
    def now(self) -> Guess:
        """Where the descent is, with the best losses so far."""
        labels = self._variables[1] if len(self._variables) > 1 else self._labels
        return Guess(self.best.slots, self._variables[0], labels, self.best.losses)

    def run(self, steps: int, watch: Watcher | None = None) -> Guess:
        """Take some steps and return the best state that each start has passed through."""
        for _ in range(steps):
            losses, slopes = self._slopes(self.now)
            self.best = _keep_better(self.best, self.now, losses)
            for variable, slope in zip(self._variables, slopes, strict=True):
                variable.grad = _clipped(slope, self._descent.clip)
            for group in self._optimizer.param_groups:
                group["lr"] = self._descent.rate(self.steps_done)
            self._optimizer.step()
            self.steps_done += 1
            if watch is not None:
                watch(self.steps_done, self.best)
        return self.best

    def rearrange(self, orders: Tensor) -> None:
        """Put the tokens in another order `[V, starts, B, T]`, and with them what the optimiser remembers of each."""
        remembered = self._optimizer.state[self._variables[0]]
        moved = [self._variables[0], *(value for value in remembered.values() if value.ndim > 1)]
        for tensor in moved:
            tensor.copy_(rearrange(tensor, orders))

    def _slopes(self, guess: Guess) -> tuple[Tensor, list[Tensor]]:
        """Return the losses, and their gradients by embeddings and, if they are searched, label logits."""
        searched = guess.labels.is_floating_point()
        logits = guess.labels.detach().requires_grad_(searched)
        labels = logits.softmax(dim=-1) if searched else logits
        inputs = guess.slots.fill(self._target, guess.embeddings).detach().requires_grad_()
        leaf = labels.detach().requires_grad_(searched)
        losses, gradients = self._matcher.gradients(Candidates(inputs, guess.slots.mask, leaf))
        slope = gradients["inputs"]
        if self._penalty is not None:
            extra = self._penalty(inputs, guess.slots.mask)
            slope = slope + torch.autograd.grad(extra.sum(), inputs)[0]
            losses = losses + extra.detach()
        slopes = [torch.where(guess.slots.free[..., None], slope, 0.0)]
        if searched:
            slopes.append(torch.autograd.grad(labels, logits, gradients["labels"])[0])
        return losses, slopes


def descend(target: Target, matcher: Matcher, guess: Guess, descent: Descent, watch: Watcher | None = None) -> Guess:
    """Optimise a guess from beginning to end and return the best state that each start passed through.

    Args:
        target: the model.
        matcher: the distance to go down.
        guess: where to start.
        descent: how.
        watch: called after each step with its number and the best state so far.
    """
    return Descender(target, matcher, guess, descent).run(descent.steps, watch)


def _keep_better(best: Guess, now: Guess, losses: Tensor) -> Guess:
    """Keep for each start what had the smaller loss, without asking the device which one that is."""
    better = losses < best.losses

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(better.view(*better.shape, *[1] * (new.ndim - 2)), new, old)

    return Guess(
        best.slots,
        choose(now.embeddings.detach(), best.embeddings),
        choose(now.labels.detach(), best.labels),
        choose(losses, best.losses),
    )


def _clipped(slope: Tensor, most: float) -> Tensor:
    """Limit the norm of each guess's gradient; guesses do not feel each other."""
    if not most:
        return slope
    norms = slope.flatten(2).norm(dim=2)
    factor = (most / norms.clamp(min=1e-12)).clamp(max=1.0)
    return slope * factor.view(*factor.shape, *[1] * (slope.ndim - 2))
