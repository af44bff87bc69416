"""Laplacian noise on every entry."""

from __future__ import annotations

import math
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

    value: float

    def is_sensible(self) -> bool:
        """Any finite number from 0 up."""
        return self.value >= 0 and math.isfinite(self.value)

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Every entry gets its own draw."""
        return update.with_tensors(
            {
                name: tensor + self.value * _standard_laplace(tensor.shape, generator).to(tensor)
                for name, tensor in update.tensors.items()
            }
        )


def _standard_laplace(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw on the CPU by inverting the distribution function, in double so that no draw is infinite in practice."""
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)  # [-1, 1)
    uniform.clamp_(min=-1 + 2**-53)  # -1 itself would become infinite
    return uniform.abs().neg_().log1p_().mul_(uniform.sign()).neg_()
