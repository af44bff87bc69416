"""Laplacian noise on every entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.noise import AddedNoise
from gradleak.randomness import uniform


@register
@dataclass(frozen=True)
class Laplace(AddedNoise):
    """Add independent Laplacian noise of scale b to every entry (Zhu et al. 2019, section 5.1).

    Its standard deviation is √2 b, and its tails are heavier than those of a Gaussian.
    """

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "add Laplacian noise to every entry"
    takes: ClassVar[str] = "a scale of 0 or more"

    @staticmethod
    def draw(shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draw by inverting the distribution function, in double, where infinite draws are rare."""
        drawn = uniform(shape, generator, torch.float64)
        drawn.mul_(2).sub_(1)  # [-1, 1)
        drawn.clamp_(min=-1 + 2**-53)  # -1 itself would become infinite
        return drawn.abs().neg_().log1p_().mul_(drawn.sign()).neg_()
