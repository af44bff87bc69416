"""Guesses: the continuous state of an attack on many victims, used by every attack that optimises embeddings.

Leading dimensions are `[victims V, starts, sequences B, tokens T]`; a start is one of several attempts at a victim,
which may differ in the lengths that they assume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.matching import Candidates
from gradleak.optimisation.slots import Slots, pick_starts, trimmed
from gradleak.search import rearrange
from gradleak.targets import Target
from gradleak.targets.dropout import DropoutSite


@dataclass(frozen=True)
class Guess:
    """The variables of a descent, and the smallest loss of each start so far.

    Attributes:
        slots: the places of the tokens.
        embeddings: word embeddings `[V, starts, B, T, width]`.
        labels: classes `[V, starts, B]`, or token ids `[V, starts, B, T]` of a language model; or, where labels are
            optimised too, logits `[V, starts, B, (T,) classes]`.
        losses: the smallest distance of each start so far `[V, starts]`.
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
        """Return the guess as candidates for the engine."""
        labels = self.labels.softmax(dim=-1) if self.labels.is_floating_point() else self.labels
        return Candidates(self.slots.fill(target, self.embeddings), self.slots.mask, labels, self.dropout)

    def classes(self, target: Target) -> Tensor | None:
        """Return the classes `[V, starts, B]`, the likeliest where they are optimised; None for a language model."""
        if target.task == "causal-lm":
            return None
        return self.labels.argmax(dim=-1) if self.labels.is_floating_point() else self.labels

    def select(self, chosen: Sequence[int]) -> Guess:
        """Return the guesses of some victims."""
        index = torch.tensor(chosen, dtype=torch.long, device=self.losses.device)
        slots = Slots(*(tensor[index] for tensor in vars(self.slots).values()))
        return self._each(slots, lambda tensor: tensor[index])

    @classmethod
    def joined(cls, guesses: Sequence[Guess]) -> Guess:
        """Concatenate the guesses of several groups of victims, with slots of one size."""
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
        """Return the chosen starts `[victims, kept]` of each victim."""
        return self._each(self.slots.starts(chosen), lambda tensor: pick_starts(tensor, chosen))

    def put(self, victims: Sequence[int], chosen: Tensor, some: Guess) -> Guess:
        """Replace the chosen starts `[some, kept]` of some victims by others, in the same slots."""
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
        """Return the `count` starts of each victim with the smallest losses."""
        return self.starts(self.losses.argsort(dim=1)[:, :count])

    def words(self, target: Target) -> tuple[Tensor, Guess]:
        """Return the ids of the nearest words `[V, starts, B, T]`, and the guess with their embeddings."""
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
        """Apply an order `[V, starts, B, T]` to tokens, together with their labels and dropout masks.

        An order may take a token several times, or none (−1), which makes padding.
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
    """Draw Gaussian embeddings for each victim from its own random stream; unknown labels start as even logits.

    A start draws numbers for the tokens that it has: a victim's do not depend on the lengths of other victims.
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


def keep_better(best: Guess, now: Guess, losses: Tensor) -> Guess:
    """Keep the state of each start that has the smaller loss, without a round trip to the device."""
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


def rearrange_mask(mask: Tensor, orders: Tensor, site: DropoutSite) -> Tensor:
    """Apply orders `[V, starts, B, T]` to the token dimensions of a dropout mask `[V, starts, B, *shape]`."""
    for dim in site.token_dims:
        index = orders.clamp(min=0).view(*orders.shape[:3], *(-1 if d == dim else 1 for d in range(len(site.shape))))
        mask = mask.gather(3 + dim, index.expand(*mask.shape[: 3 + dim], orders.shape[3], *mask.shape[4 + dim :]))
    return mask


def best_texts(target: Target, guess: Guess) -> list[tuple[float, tuple[str, ...]]]:
    """Return the loss and the texts of each victim's best start."""
    best = guess.best_starts(1)
    ids = best.slots.project(target, best.embeddings)
    return [
        (float(best.losses[v, 0]), tuple(target.decode(row) for row in trimmed(ids[v, 0], best.slots.mask[v, 0])))
        for v in range(len(ids))
    ]


def _shorten_mask(mask: Tensor, tokens: int, site: DropoutSite) -> Tensor:
    """Return a dropout mask `[V, starts, B, *shape]` of the first tokens alone."""
    for dim in site.token_dims:
        mask = mask.narrow(3 + dim, 0, tokens)
    return mask
