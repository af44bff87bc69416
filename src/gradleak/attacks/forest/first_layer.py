"""Which tokens an update's first layer shows, in the batch and at each position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.forest.positioned_tokens import pursue_positioned_tokens
from gradleak.attacks.forest.prefix_inputs import PrefixInputs
from gradleak.attacks.forest.residual import Residual
from gradleak.attacks.forest.rounding import RowNoise
from gradleak.attacks.forest.token_pursuit import MEMBER, NOISY_MEMBER, pursue_tokens, take_back, tokens_in_span
from gradleak.exchange import Deadline
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target

MOST_PROPOSED = 96
"""Tokens that the first layer proposes under strong noise, at most."""

TokensAt = Callable[[int], Tensor]
"""Returns the tokens that may stand at a position."""


@dataclass(frozen=True)
class FirstLayer:
    """The sites of an update whose inputs depend on single tokens.

    Attributes:
        target: a decoder.
        inputs: computes the inputs of all sites.
        numbers: the indices of the first layer's sites.
        noise: the errors of the update's rows.
    """

    target: Target
    inputs: PrefixInputs
    numbers: Sequence[int]
    noise: RowNoise

    @property
    def _words(self) -> Tensor:
        return torch.arange(len(self.target.word_embeddings), device=self.target.device)

    def tokens(self, deadline: Deadline) -> tuple[Tensor, TokensAt]:
        """Return the tokens of the batch, none if they cannot be told, and those that may stand at a position.

        Where the row space is whole, every token is tested by itself; else, and for those that are too weak for that,
        tokens are picked one by one.
        """
        residuals = [self.noise.residual(self.inputs.sites[number]) for number in self.numbers]
        noisy, adapted = not self.noise.exact, self.target.adapter is not None
        open_ended = (noisy and adapted) or self.noise.strong or any(residual.full for residual in residuals)
        member = NOISY_MEMBER if noisy else MEMBER
        if self.target.family.position_embedding is not None:
            if open_ended:
                found = self._positioned(residuals[0], deadline)
                return found, lambda position: found

            def at(position: int) -> Tensor:
                return tokens_in_span(self._tables(position), residuals, member)

            return at(0), at
        tables = self._tables(0)
        members = [] if open_ended else tokens_in_span(tables, residuals, member).tolist()
        # a token whose coefficients are tiny does not quite lie in the span; without the others it stands out
        picked = pursue_tokens(tables, residuals, self._most(residuals), deadline, noisy=noisy, given=members)
        first = self.inputs.sites[self.numbers[0]]
        if not noisy and first.reduction is None:
            all_found = all(residual.explained for residual in residuals)
            kept = take_back(tables[0], first.rows, picked)
            picked = kept if all_found or members or deadline.hit else []
        tokens = self._words[torch.tensor(picked, dtype=torch.long, device=self.target.device)]
        return tokens, lambda position: tokens

    def _most(self, residuals: Sequence[Residual]) -> int:
        """Return how many tokens may be picked."""
        most = min(residual.rows.shape[1] for residual in residuals) - 1
        if self.noise.strong:
            return min(most, MOST_PROPOSED)
        if any(module.dropout for module in self.target.adapters):  # masked inputs explain nothing, however many
            return min(most, max(MOST_PROPOSED, 4 * residuals[0].rank))
        return most

    def _positioned(self, first: Residual, deadline: Deadline) -> Tensor:
        """Return the tokens of a model with a table of positions, none if they cannot be told."""
        if self.target.adapter is None or self.inputs.sites[self.numbers[0]].reduction is not None:
            return self._words[:0]
        noisy = not self.noise.exact
        picked, whole = pursue_positioned_tokens(first_layer_inputs(self.target), first, deadline, noisy=noisy)
        # noise is never quite explained, and deeper layers tell which of these tokens occur
        picked = picked if whole or noisy else []
        return self._words[torch.tensor(picked, dtype=torch.long, device=self.target.device)]

    def _tables(self, position: int) -> list[Tensor]:
        words, place = (self._words, position) if position < self.target.max_length else (self._words[:0], 0)
        return [self.inputs.of_tokens(number, words, place) for number in self.numbers]
