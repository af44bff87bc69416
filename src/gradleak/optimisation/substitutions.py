"""Token substitutions: any token of a guess, or one of the words nearest to it, at any place. Used by GRAB's beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.optimisation.guess import Guess
from gradleak.targets import Target


@dataclass(frozen=True)
class Substitutions:
    """The tokens of a guess with one start, each as any of the words nearest to it.

    A substitution is a number: `place × alternatives + alternative` is the token of that place, with its label and its
    dropout masks, as the nearest word to its embedding (alternative 0), the next one, and so on. −1 is no token.

    Attributes:
        target: the model.
        words: the guess as its nearest words.
        ids: the words nearest to each place `[V, 1, B, T, alternatives]`, the nearest first.
    """

    target: Target
    words: Guess
    ids: Tensor

    @classmethod
    def near(cls, target: Target, guess: Guess, alternatives: int) -> Substitutions:
        """Return the substitutions that a guess allows."""
        alternatives = min(alternatives, len(target.word_embeddings) - len(target.impossible_ids))
        return cls(target, guess.words(target)[1], guess.slots.nearest(target, guess.embeddings, alternatives))

    @property
    def alternatives(self) -> int:
        """How many words there are for a token."""
        return self.ids.shape[-1]

    def of_orders(self, orders: Tensor) -> Tensor:
        """Return orders of places as substitutions: every token as its nearest word."""
        return torch.where(orders < 0, orders, orders * self.alternatives)

    def select(self, chosen: Sequence[int]) -> Substitutions:
        """Return the substitutions of some victims."""
        return replace(self, words=self.words.select(chosen), ids=self.ids[list(chosen)])

    def shortened(self, tokens: int) -> Substitutions:
        """Return the substitutions without the places from `tokens` on."""
        return replace(self, words=self.words.shortened(tokens), ids=self.ids[:, :, :, :tokens])

    def sequence(self, number: int) -> Substitutions:
        """Return one sequence of every batch."""
        return replace(self, words=self.words.sequence(number), ids=self.ids[:, :, number : number + 1])

    def apply(self, substitutions: Tensor) -> Guess:
        """Return the guesses with substitutions `[V, count, B, T]` at their places."""
        guess = self.words.repeated(substitutions.shape[1])
        guess = guess.rearranged(torch.where(substitutions < 0, substitutions, substitutions // self.alternatives))
        every = self.ids.flatten(3).expand(-1, substitutions.shape[1], -1, -1)
        ids = every.gather(3, substitutions.clamp(min=0))
        labels = ids if self.target.task == "causal-lm" else guess.labels
        return replace(guess, embeddings=self.target.embed(ids), labels=labels)


class SequenceVariants:
    """Variants of one sequence for a beam search: any substitution, or the end of the sequence, at any place.

    Args:
        substitutions: those of one sequence of each victim.
        room: how long the sequence may become `[victims]`.
        may_end: whether its length is searched, too.

    Attributes:
        places: the places that may be varied.
    """

    def __init__(self, substitutions: Substitutions, room: Tensor, *, may_end: bool) -> None:
        before, after = substitutions.target.special_tokens
        slots = substitutions.words.slots
        mask, self._free = slots.mask[:, 0, 0], slots.free[:, 0, 0]  # [victims, tokens]
        self._closing = len(after)
        self._end = mask.sum(dim=1) - self._closing  # of the tokens of the guess, where the special ones follow
        self._room = room - self._closing
        self._may_end = may_end
        self._alternatives = substitutions.alternatives
        self.places = range(len(before), mask.shape[1] - self._closing)

    def at(self, chosen: Tensor, place: int) -> Tensor:
        """Return sequences `[V, beams, T]` with every variant of a place `[V, variants, T]`, themselves included."""
        first, last = self.places.start * self._alternatives, self.places.stop * self._alternatives
        tried = torch.arange(first, last, device=chosen.device)
        ends = (chosen >= 0).sum(dim=2)[..., None] - self._closing  # [V, beams, 1]
        longer = torch.zeros_like(ends).bool()
        if self._may_end:
            longer = (ends == place) & (place < self._room[:, None, None])
        put = chosen[:, :, None].repeat(1, 1, len(tried), 1)
        put[..., place] = tried
        fits = self._free[:, None, tried // self._alternatives] & ((place < ends) | longer)
        variants = [torch.where(fits[..., None], self._closed(put, ends + longer.long()), chosen[:, :, None])]
        if self._may_end and place > self.places.start:
            shorter = self._closed(chosen[:, :, None], torch.full_like(ends, place))
            variants.append(torch.where((place < ends)[..., None], shorter, chosen[:, :, None]))
        if self._may_end:  # the sequence may have ended here, or before
            variants.append(chosen[:, :, None])
        return torch.cat(variants, dim=2).flatten(1, 2)

    def _closed(self, chosen: Tensor, ends: Tensor) -> Tensor:
        """End sequences `[V, beams, variants, T]` at `[V, beams, 1]`: special tokens there, padding after them."""
        behind = torch.arange(chosen.shape[-1], device=chosen.device) - ends[..., None]
        special = (self._end[:, None, None, None] + behind) * self._alternatives
        return torch.where(behind < 0, chosen, torch.where(behind < self._closing, special, -1))
