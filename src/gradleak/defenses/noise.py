"""Noise on every entry: the base of all kinds, and Gaussian noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.entries import BatchedDefense
from gradleak.randomness import normal


@dataclass(frozen=True)
class AddedNoise(BatchedDefense):
    """Base of defenses that add independent noise to every entry; a subclass draws it.

    Attributes:
        value: the scale of the noise.
    """

    by_tensor: ClassVar[bool] = True

    value: float

    def is_sensible(self) -> bool:
        """Return whether it is a finite number of 0 or more."""
        return self.value >= 0 and math.isfinite(self.value)

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return each update with an independent draw added to each entry."""
        return {
            name: tensor + self.value * self.draw(tensor.shape, generator).to(tensor)
            for name, tensor in tensors.items()
        }

    @staticmethod
    @abstractmethod
    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw noise of scale one on the generator's device; generators on CPU and GPU draw different numbers."""


@register
@dataclass(frozen=True)
class Noise(AddedNoise):
    """Add independent Gaussian noise of this standard deviation to every entry (Zhu et al. 2019, section 5.1).

    Without clipping it bounds nobody's privacy loss; it is the baseline that the attacks' papers measure.
    """

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "add Gaussian noise to every entry"
    takes: ClassVar[str] = "a standard deviation of 0 or more"

    @staticmethod
    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw from the standard normal distribution."""
        return normal(shape, generator)
