"""Gradient descent on guesses: many victims, starts and labels in one optimiser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from gradleak.matching import Candidates, Matcher
from gradleak.optimisation.guess import Slots, pick_starts
from gradleak.search import rearrange
from gradleak.targets import Target
from gradleak.targets.dropout import DropoutSite

# A GPU's queue runs ahead of the clock: so often it is waited for where there is a deadline.
WAIT_EVERY = 16

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
        clip: greatest norm of the gradient by one guess's embeddings; 0 for no limit.
        mask_speed: how much larger the learning rate of dropout masks is.
    """

    steps: int
    lr: float
    optimizer: Literal["adam", "adamw"] = "adam"
    decay: float = 1.0
    decay_every: int = 50
    linear: bool = False
    clip: float = 0.0
    mask_speed: float = 1.0

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
        labels: classes `[V, starts, B]`, or token ids `[V, starts, B, T]` of a language model; or, where they are
            searched too, logits `[V, starts, B, (T,) classes]`.
        losses: the best distance of each start so far `[V, starts]`.
        dropout: masks by dropout site `[V, starts, B, *shape of the site]`; empty if no dropout is assumed.
        sites: the dropout sites of the masks.
    """

    slots: Slots
    embeddings: Tensor
    labels: Tensor
    losses: Tensor
    dropout: Mapping[str, Tensor] = field(default_factory=dict)
    sites: Mapping[str, DropoutSite] = field(default_factory=dict)

    def candidates(self, target: Target) -> Candidates:
        """Return the guess as candidates of the engine."""
        labels = self.labels.softmax(dim=-1) if self.labels.is_floating_point() else self.labels
        return Candidates(self.slots.fill(target, self.embeddings), self.slots.mask, labels, self.dropout)

    def select(self, chosen: Sequence[int]) -> Guess:
        """Return some victims' guesses."""
        index = torch.tensor(chosen, dtype=torch.long, device=self.losses.device)
        slots = Slots(*(tensor[index] for tensor in vars(self.slots).values()))
        return self._each(slots, lambda tensor: tensor[index])

    @classmethod
    def joined(cls, guesses: Sequence[Guess]) -> Guess:
        """Return guesses at some victims, with frames of the same size, as one."""
        first = guesses[0]
        slots = zip(*(vars(guess.slots).values() for guess in guesses), strict=True)
        return cls(
            Slots(*(torch.cat(parts) for parts in slots)),
            torch.cat([guess.embeddings for guess in guesses]),
            torch.cat([guess.labels for guess in guesses]),
            torch.cat([guess.losses for guess in guesses]),
            {name: torch.cat([guess.dropout[name] for guess in guesses]) for name in first.dropout},
            first.sites,
        )

    def sequence(self, number: int) -> Guess:
        """Return one sequence of every batch."""

        def part(tensor: Tensor) -> Tensor:
            return tensor[:, :, number : number + 1]

        slots = Slots(*(part(tensor) for tensor in vars(self.slots).values()))
        dropout = {name: part(mask) for name, mask in self.dropout.items()}
        return Guess(slots, part(self.embeddings), part(self.labels), self.losses, dropout, self.sites)

    def starts(self, chosen: Tensor) -> Guess:
        """Return for each victim the chosen starts `[victims, kept]`."""
        return self._each(self.slots.starts(chosen), lambda tensor: pick_starts(tensor, chosen))

    def put(self, victims: Sequence[int], chosen: Tensor, some: Guess) -> Guess:
        """Return the guess with others in place of some victims' chosen starts `[some, kept]`, in the same frames."""
        places = torch.tensor(victims, dtype=torch.long, device=chosen.device)[:, None], chosen
        return Guess(
            self.slots,
            self.embeddings.index_put(places, some.embeddings),
            self.labels.index_put(places, some.labels),
            self.losses.index_put(places, some.losses),
            {name: mask.index_put(places, some.dropout[name]) for name, mask in self.dropout.items()},
            self.sites,
        )

    def best_starts(self, count: int) -> Guess:
        """Return for each victim the `count` starts with the smallest losses."""
        return self.starts(self.losses.argsort(dim=1)[:, :count])

    def words(self, target: Target) -> tuple[Tensor, Guess]:
        """Return the nearest words' ids `[V, starts, B, T]`, and the guess with their embeddings."""
        ids = self.slots.project(target, self.embeddings)
        labels = ids if target.task == "causal-lm" else self.labels
        return ids, Guess(self.slots, target.embed(ids), labels, self.losses, self.dropout, self.sites)

    def shortened(self, tokens: int) -> Guess:
        """Return the guess without the places from `tokens` on."""
        slots = Slots(*(tensor[..., :tokens] for tensor in vars(self.slots).values()))
        dropout = {name: _shorten_mask(mask, tokens, self.sites[name]) for name, mask in self.dropout.items()}
        labels = self.labels[:, :, :, :tokens] if self.labels_per_token else self.labels
        return Guess(slots, self.embeddings[..., :tokens, :], labels, self.losses, dropout, self.sites)

    def rearranged(self, orders: Tensor) -> Guess:
        """Put tokens in another order `[V, starts, B, T]`, and with each what is assumed of its label and dropout.

        An order may take a token several times, and none at all (−1): there is padding then.
        """
        return Guess(
            self.slots.rearranged(orders),
            rearrange(self.embeddings, orders.clamp(min=0)),
            rearrange(self.labels, orders.clamp(min=0)) if self.labels_per_token else self.labels,
            torch.full_like(self.losses, torch.inf),
            {name: rearrange_mask(mask, orders, self.sites[name]) for name, mask in self.dropout.items()},
            self.sites,
        )

    def repeated(self, count: int) -> Guess:
        """Return every start `count` times in a row, without copying."""

        def repeat(tensor: Tensor) -> Tensor:
            wide = tensor[:, :, None].expand(*tensor.shape[:2], count, *tensor.shape[2:])
            return wide.reshape(len(tensor), -1, *tensor.shape[2:])

        return self._each(Slots(*(repeat(tensor) for tensor in vars(self.slots).values())), repeat)

    @property
    def labels_per_token(self) -> bool:
        """Whether labels are those of a language model, one for each token."""
        return self.labels.ndim == (5 if self.labels.is_floating_point() else 4)

    def _each(self, slots: Slots, change: Callable[[Tensor], Tensor]) -> Guess:
        return Guess(
            slots,
            change(self.embeddings),
            change(self.labels),
            change(self.losses),
            {name: change(mask) for name, mask in self.dropout.items()},
            self.sites,
        )


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

    Embeddings are searched; so are labels that are logits, and the dropout masks that a guess has, within [0, 1].

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
        """Where the descent is, with the best losses so far."""
        best = self.best
        return Guess(best.slots, self._embeddings, self._labels, best.losses, self._masks, best.sites)

    def run(self, steps: int, watch: Watcher | None = None) -> Guess:
        """Take some steps and return the best state that each start has passed through; fewer if time is up."""
        for _ in range(steps):
            if self._is_time_up():
                break
            losses, slopes = self._slopes(self.now)
            self.best = keep_better(self.best, self.now, losses)
            slopes[0] = _clipped(slopes[0], self._descent.clip)
            for variable, slope in zip(self._variables, slopes, strict=True):
                variable.grad = slope
            for group in self._optimizer.param_groups:
                group["lr"] = self._descent.rate(self.steps_done) * group["speed"]
            self._optimizer.step()
            for mask in self._masks.values():
                mask.clamp_(0, 1)
            self.steps_done += 1
            if watch is not None:
                watch(self.steps_done, self.best)
        return self.best

    def _is_time_up(self) -> bool:
        deadline = self._matcher.deadline
        if deadline.limited and self._target.device.type == "cuda" and self.steps_done % WAIT_EVERY == 0:
            torch.cuda.synchronize(self._target.device)
        return deadline.passed

    def rearrange(self, orders: Tensor) -> None:
        """Put the tokens in another order `[V, starts, B, T]`, and with them what the optimiser remembers of each."""
        for variable, move in zip(self._variables, self._moves, strict=True):
            remembered = self._optimizer.state[variable].values()
            for tensor in (variable, *(value for value in remembered if value.shape == variable.shape)):
                tensor.copy_(move(tensor, orders))

    def select(self, chosen: Sequence[int], matcher: Matcher) -> Descender:
        """Return the descent of some victims alone, where it is and with what the optimiser remembers of them.

        Args:
            chosen: their numbers.
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

    def _slopes(self, guess: Guess) -> tuple[Tensor, list[Tensor]]:
        """Return the losses, and their gradients by embeddings and, if they are searched, label logits and masks."""
        searched = guess.labels.is_floating_point()
        logits = guess.labels.detach().requires_grad_(searched)
        labels = logits.softmax(dim=-1) if searched else logits
        inputs = guess.slots.fill(self._target, guess.embeddings).detach().requires_grad_()
        leaf = labels.detach().requires_grad_(searched)
        masks = {name: mask.detach().requires_grad_() for name, mask in guess.dropout.items()}
        losses, gradients = self._matcher.gradients(Candidates(inputs, guess.slots.mask, leaf, masks))
        slope = gradients["inputs"]
        if self._penalty is not None:
            extra = self._penalty(inputs, guess.slots.mask)
            slope = slope + torch.autograd.grad(extra.sum(), inputs)[0]
            losses = losses + extra.detach()
        slopes = [torch.where(guess.slots.free[..., None], slope, 0.0)]
        if searched:
            slopes.append(torch.autograd.grad(labels, logits, gradients["labels"])[0])
        return losses, [*slopes, *(gradients[f"dropout.{name}"] for name in masks)]


def rearrange_mask(mask: Tensor, orders: Tensor, site: DropoutSite) -> Tensor:
    """Apply orders `[V, starts, B, T]` to a dropout mask `[V, starts, B, *shape]`, wherever it counts tokens."""
    for dim in site.token_dims:
        index = orders.clamp(min=0).view(*orders.shape[:3], *(-1 if d == dim else 1 for d in range(len(site.shape))))
        mask = mask.gather(3 + dim, index.expand(*mask.shape[: 3 + dim], orders.shape[3], *mask.shape[4 + dim :]))
    return mask


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


def keep_better(best: Guess, now: Guess, losses: Tensor) -> Guess:
    """Keep for each start what had the smaller loss, without asking the device which one that is."""
    better = losses < best.losses

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(better.view(*better.shape, *[1] * (new.ndim - 2)), new, old)

    return Guess(
        best.slots,
        choose(now.embeddings.detach(), best.embeddings),
        choose(now.labels.detach(), best.labels),
        choose(losses, best.losses),
        {name: choose(mask, best.dropout[name]) for name, mask in now.dropout.items()},
        best.sites,
    )


def _shorten_mask(mask: Tensor, tokens: int, site: DropoutSite) -> Tensor:
    """Return a dropout mask `[V, starts, B, *shape]` of the first tokens alone."""
    for dim in site.token_dims:
        mask = mask.narrow(3 + dim, 0, tokens)
    return mask


def _stay(tensor: Tensor, _: Tensor) -> Tensor:
    return tensor


def _clipped(slope: Tensor, most: float) -> Tensor:
    """Limit the norm of each guess's gradient; guesses do not feel each other."""
    if not most:
        return slope
    norms = slope.flatten(2).norm(dim=2)
    factor = (most / norms.clamp(min=1e-12)).clamp(max=1.0)
    return slope * factor.view(*factor.shape, *[1] * (slope.ndim - 2))
