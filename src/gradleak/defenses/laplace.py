"""Laplacian noise on every entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import register
from gradleak.defenses.noise import AddedNoise


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
        """Invert the distribution function, in double: hardly a draw is infinite."""
        uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
        uniform.mul_(2).sub_(1)  # [-1, 1)
        uniform.clamp_(min=-1 + 2**-53)  # -1 itself would become infinite
        return uniform.abs().neg_().log1p_().mul_(uniform.sign()).neg_()
