"""The rows of a batch under dropout: the token, position and mask of every input of the first maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.leakage.layer_inputs import LayerInputs

SAME_MASK = 0.04
"""Masks that differ in a smaller fraction of their entries are the same: those of two occurrences differ in a fifth."""


@dataclass
class InputRows:
    """Rows found so far, with the token, position and mask of each."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    masks: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, position: int) -> list[int]:
        """Return the indices of the rows at a position."""
        return [row for row, p in enumerate(self.positions) if p == position]

    def add(self, token: int, position: int, mask: Tensor) -> None:
        """Add a row unless it is known: masks of one occurrence differ at most in entries of negligible size."""
        same = (row for row in self.at(position) if self.tokens[row] == token)
        if all(int((self.masks[row] ^ mask).sum()) > SAME_MASK * len(mask) for row in same):
            self.tokens.append(token)
            self.positions.append(position)
            self.masks.append(mask)

    def select(self, indices: Iterable[int]) -> InputRows:
        """Return some of the rows, in ascending order of their indices."""
        chosen = sorted(indices)
        return InputRows(
            [self.tokens[row] for row in chosen],
            [self.positions[row] for row in chosen],
            [self.masks[row] for row in chosen],
        )

    def joined(self, other: InputRows) -> InputRows:
        """Return these rows followed by others."""
        return InputRows(self.tokens + other.tokens, self.positions + other.positions, self.masks + other.masks)

    def vectors(self, inputs: LayerInputs) -> Tensor:
        """Return the inputs of the first maps `[rows, width]`, up to a factor that all rows share."""
        device = inputs.words.device
        tokens, positions = (torch.tensor(p, dtype=torch.long, device=device) for p in (self.tokens, self.positions))
        masks = torch.stack(self.masks) if self.masks else torch.ones(0, inputs.width, device=device)
        if inputs.dropout_before_norm:
            return inputs.layer_norm(inputs.embedding_sums(tokens, positions) * masks / (1 - inputs.rate))
        return inputs(tokens, positions) * masks
