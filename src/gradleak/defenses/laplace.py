"""Laplacian noise on every entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class Laplace(Defense):
    """Add independent Laplacian noise of scale b to every entry (Zhu et al. 2019, section 5.1).

    Its standard deviation is √2 b, and its tails are heavier than those of a Gaussian.
    """

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "add Laplacian noise to every entry"
    takes: ClassVar[str] = "a scale of 0 or more"
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
            name: tensor + self.value * _standard_laplace(tensor.shape, generator).to(tensor)
            for name, tensor in tensors.items()
        }


def _standard_laplace(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw where the generator is, by inverting the distribution function, in double: hardly a draw is infinite."""
    uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    uniform.mul_(2).sub_(1)  # [-1, 1)
    uniform.clamp_(min=-1 + 2**-53)  # -1 itself would become infinite
    return uniform.abs().neg_().log1p_().mul_(uniform.sign()).neg_()
