"""What may stand at the places of a guess: its tokens in any order, and words near to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.optimisation.descent import Guess
from gradleak.targets import Target


@dataclass(frozen=True)
class Choices:
    """Tokens of a guess with one start, each as any of the words nearest to it.

    A choice is a number: `place × kinds + kind` is the token of that place, with what is assumed of its label and its
    dropout, as the nearest word to its embedding (kind 0), the next one, and so on. −1 is no token.

    Attributes:
        target: the model.
        words: the guess as its nearest words.
        ids: the words near to each place `[V, 1, B, T, kinds]`, the nearest first.
    """

    target: Target
    words: Guess
    ids: Tensor

    @classmethod
    def near(cls, target: Target, guess: Guess, kinds: int) -> Choices:
        """Return the choices that a guess gives."""
        kinds = min(kinds, len(target.word_embeddings) - len(target.impossible_ids))
        return cls(target, guess.words(target)[1], guess.slots.nearest(target, guess.embeddings, kinds))

    @property
    def kinds(self) -> int:
        """How many words there are for a token."""
        return self.ids.shape[-1]

    def of_orders(self, orders: Tensor) -> Tensor:
        """Return orders of places as choices: every token as its nearest word."""
        return torch.where(orders < 0, orders, orders * self.kinds)

    def select(self, chosen: Sequence[int]) -> Choices:
        """Return some victims' choices."""
        return replace(self, words=self.words.select(chosen), ids=self.ids[list(chosen)])

    def shortened(self, tokens: int) -> Choices:
        """Return the choices without the places from `tokens` on."""
        return replace(self, words=self.words.shortened(tokens), ids=self.ids[:, :, :, :tokens])

    def sequence(self, number: int) -> Choices:
        """Return one sequence of every batch."""
        return replace(self, words=self.words.sequence(number), ids=self.ids[:, :, number : number + 1])

    def put(self, choices: Tensor) -> Guess:
        """Return the guesses that choices `[V, count, B, T]` stand for."""
        guess = self.words.repeated(choices.shape[1])
        guess = guess.rearranged(torch.where(choices < 0, choices, choices // self.kinds))
        every = self.ids.flatten(3).expand(-1, choices.shape[1], -1, -1)
        ids = every.gather(3, choices.clamp(min=0))
        labels = ids if self.target.task == "causal-lm" else guess.labels
        return replace(guess, embeddings=self.target.embed(ids), labels=labels)
