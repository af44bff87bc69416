"""Distances between a candidate's gradient and the observed one.

A distance is a formula over a few sums for each parameter tensor. Inner products and norms come from factors and cost
next to nothing; sums over single entries (`absolute`, `violation`) need the gradient itself, tensor by tensor. What the
papers call a layer is, in their published code, each parameter tensor; so it is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """The sums that distances are made of, each `[parameters, victims, candidates]` and in float64.

    Attributes:
        inner: candidate · observed; NaN if `absolute` is asked for.
        candidate: ‖candidate‖²; NaN if `absolute` is asked for.
        observed: ‖observed‖².
        included: 1 where the victim's tensor takes part, 0 where it is numerically zero.
        absolute: ‖candidate − observed‖₁, if asked for.
        difference: ‖candidate − observed‖², from the same entries.
        violation: Σ max(−candidate · sign(observed), 0), if asked for.
        squared_violation: the same, squared before it is summed.
    """

    inner: Tensor
    candidate: Tensor
    observed: Tensor
    included: Tensor
    absolute: Tensor | None = None
    difference: Tensor | None = None
    violation: Tensor | None = None
    squared_violation: Tensor | None = None

    @property
    def squared_difference(self) -> Tensor:
        """‖candidate − observed‖²."""
        if self.difference is not None:
            return self.difference.clamp(min=0)
        return (self.candidate - 2 * self.inner + self.observed).clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class Distance(ABC):
    """Base of all distances.

    Attributes:
        kept_only: compare only entries that are not zero in the observed gradient: what pruning left (LTI, appendix
            A.1; GRAB, section 5.5.2).
        normalised: first scale the candidate's gradient to the observed one's norm (GRAB, section 5.5.1).
    """

    kept_only: bool = False
    normalised: bool = False
    entry_sums: ClassVar[frozenset[str]] = frozenset()

    @property
    def needs_entries(self) -> bool:
        """Whether the gradient itself must be built."""
        return self.kept_only or bool(self.entry_sums)

    @abstractmethod
    def __call__(self, sums: Sums) -> Tensor:
        """Return the distances `[victims, candidates]`."""


@dataclass(frozen=True, kw_only=True)
class SquaredL2(Distance):
    """Σ ‖·‖², as DLG (Zhu et al. 2019) has it."""

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        return (sums.squared_difference * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class L2(Distance):
    """Σ ‖·‖, a norm for each tensor."""

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        return (_root(sums.squared_difference) * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class L1(Distance):
    """Σ ‖·‖₁."""

    entry_sums: ClassVar[frozenset[str]] = frozenset({"absolute"})

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        assert sums.absolute is not None
        return (sums.absolute * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class L2L1(Distance):
    """L2 + α · L1, as TAG (Deng et al. 2021) has it.

    LAMP's paper writes ‖·‖₂ (section 4.2); its published code squares it, and so do the results in its tables.
    """

    alpha: float = 0.01
    squared: bool = True
    entry_sums: ClassVar[frozenset[str]] = frozenset({"absolute"})

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        assert sums.absolute is not None
        second = sums.squared_difference if self.squared else _root(sums.squared_difference)
        return ((second + self.alpha * sums.absolute) * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class Cosine(Distance):
    """1 − the mean over tensors of the cosine (LAMP, section 4.2)."""

    def __call__(self, sums: Sums) -> Tensor:
        """Average over tensors."""
        cosine = sums.inner / (_root(sums.candidate) * _root(sums.observed)).clamp(min=1e-30)
        return 1 - (cosine * sums.included).sum(dim=0) / sums.included.sum(dim=0).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Sign(Distance):
    """For sign compression: what of the candidate's gradient has the wrong sign (LTI, appendix A.1, equation 3).

    Σ ℓ² + α · Σ ℓ with ℓ = max(−candidate · sign(observed), 0); α as in TAG, 0 for the squares alone.
    """

    alpha: float = 0.0
    entry_sums: ClassVar[frozenset[str]] = frozenset({"violation"})

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        assert sums.violation is not None
        assert sums.squared_violation is not None
        return ((sums.squared_violation + self.alpha * sums.violation) * sums.included).sum(dim=0)


DISTANCES: dict[str, type[Distance]] = {
    "squared-l2": SquaredL2,
    "l2": L2,
    "l1": L1,
    "l2+l1": L2L1,
    "cosine": Cosine,
    "sign": Sign,
}


def _root(squares: Tensor) -> Tensor:
    """Square root whose slope at zero is zero instead of infinite."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
