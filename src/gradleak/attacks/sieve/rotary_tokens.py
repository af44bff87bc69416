"""Tokens of a decoder with rotary positions, and the first layer's attention contexts of prefixes made of them.

What enters the first layer depends on the token alone, so there are tokens where other models have pairs of a token and
a position (`token_pairs.py`). Rotation, shared keys, norms of queries and windows differ from family to family; the
model itself computes the contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.targets import Target
from gradleak.targets.hooks import captured_inputs

REPEATS = 8
"""A prefix that repeats one token has the same contexts however long it is; longer ones than this are not tried."""


@dataclass(frozen=True)
class RotaryTokens:
    """The tokens that may occur at any position.

    Attributes:
        target: the model.
        tokens: token ids `[tokens]`.
    """

    target: Target
    tokens: Tensor

    def at(self, position: int) -> Tensor:
        """Return the indices of the tokens that may stand at a position: all, up to the model's length."""
        count = len(self.tokens) if position < self.target.max_length else 0
        return torch.arange(count, device=self.tokens.device)

    def contexts(self, prefixes: Tensor) -> Tensor:
        """Return the attention contexts `[prefixes, tokens, width]` of prefixes given as indices of tokens."""
        path = self.target.layers[0].attention_output.module
        return captured_inputs(self.target, self.tokens[prefixes], [path])[path].double()

    def distinguishable(self, prefixes: Tensor) -> Tensor:
        """Return the prefixes without those that repeat their first token too often."""
        if prefixes.shape[1] <= REPEATS:
            return prefixes
        return prefixes[(prefixes[:, : REPEATS + 1] != prefixes[:, :1]).any(dim=1)]
