"""DP-SGD: the update of each example is clipped, and noise is added to their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.defenses.base import Defense, Memory, register
from gradleak.defenses.clip import clipped
from gradleak.defenses.entries import batch_of_one, unbatched
from gradleak.defenses.noise import Noise
from gradleak.errors import GradleakError
from gradleak.exchange import Update


@register
@dataclass(frozen=True)
class DPSGD(Defense):
    """Clip the update of each example to an L2 norm, average, add Gaussian noise (Abadi et al. 2016; GRAB, 5.5.1).

    The noise is given as the standard deviation σ of each entry of the *mean* that is sent, comparable with `noise:σ`.
    Abadi et al. give the noise multiplier z instead: the *sum* of B clipped updates gets noise of deviation
    z C, hence the mean σ = z C / B, and z = σ B / C (`noise_multiplier`). For the same σ a larger batch has a larger z.
    GRAB's noise level is z; for C = 1 and B = 1 the two are one.

    Attributes:
        norm: C, the largest L2 norm of one example's update.
        deviation: σ, the standard deviation of the noise on the mean.
    """

    name: ClassVar[str] = "dpsgd"
    summary: ClassVar[str] = "clip each example's update to an L2 norm, average, add Gaussian noise to the mean"
    takes: ClassVar[str] = "a norm above 0 and a standard deviation of 0 or more, as in 1,0.01"
    per_example: ClassVar[bool] = True

    norm: float
    deviation: float

    def is_sensible(self) -> bool:
        """Return whether both are finite, the norm above 0 and the deviation 0 or more."""
        return self.norm > 0 and self.deviation >= 0 and math.isfinite(self.norm) and math.isfinite(self.deviation)

    def noise_multiplier(self, batch_size: int) -> float:
        """Return z: the noise on the sum of a batch, measured in clipping norms."""
        return self.deviation * batch_size / self.norm

    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Return what is sent for a batch of one example."""
        return self.apply_examples([update], generator, memory)

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return what is sent for batches of one example each."""
        return Noise(self.deviation).apply_each(clipped(tensors, self.norm), generator)

    def apply_examples(
        self, updates: Iterable[Update], generator: torch.Generator, memory: Memory | None = None
    ) -> Update:
        """Return the mean of the clipped updates plus noise; updates are summed as they come."""
        total: Update | None = None
        count = 0
        for update in updates:
            bounded = unbatched(update, clipped(batch_of_one(update), self.norm))
            count += 1
            if total is None:
                total = bounded
                continue
            for name, tensor in total.tensors.items():
                tensor.add_(bounded.tensors[name])  # in place: `clipped` returned new tensors
        if total is None:
            raise GradleakError("defense dpsgd needs at least one example")
        mean = total.with_tensors({name: tensor / count for name, tensor in total.tensors.items()})
        return Noise(self.deviation).apply(mean, generator)
