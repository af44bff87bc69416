"""Noise on every entry: Gaussian, and what all kinds of it share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.exchange import Update
from gradleak.randomness import normal


@dataclass(frozen=True)
class AddedNoise(Defense):
    """Independent noise on every entry, scaled by a value; what is drawn is a subclass's."""

    by_tensor: ClassVar[bool] = True

    value: float

    def is_sensible(self) -> bool:
        """Any finite number from 0 up."""
        return self.value >= 0 and math.isfinite(self.value)

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Every entry gets its own draw."""
        return update.with_tensors(self.apply_each(update.tensors, generator))

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Entries do not see each other."""
        return {
            name: tensor + self.value * self.draw(tensor.shape, generator).to(tensor)
            for name, tensor in tensors.items()
        }

    @staticmethod
    @abstractmethod
    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw noise of scale one where the generator is: a GPU's own stream gives other numbers."""


@register
@dataclass(frozen=True)
class Noise(AddedNoise):
    """Add independent Gaussian noise of this standard deviation to every entry (Zhu et al. 2019, section 5.1).

    Without clipping this bounds no one's privacy loss; it is the baseline that the attacks' papers measure.
    """

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "add Gaussian noise to every entry"
    takes: ClassVar[str] = "a standard deviation of 0 or more"

    @staticmethod
    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw from the standard normal distribution."""
        return normal(shape, generator)
