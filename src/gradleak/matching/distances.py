"""Distances between a candidate's gradient and the observed one; every attack picks one for its `Matcher`.

A distance is a formula over a few sums for each parameter tensor (`Sums`). Inner products and norms come from factors
and are nearly free; sums over single entries (`absolute`, `violation`) need the gradient itself, tensor by tensor. What
the papers call a layer is each parameter tensor in their published code, and here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """The sums that distances are computed from, each `[parameters, victims, candidates]` in float64.

    Attributes:
        inner: candidate · observed; NaN where the distance asks for `absolute`.
        candidate: ‖candidate‖²; NaN where the distance asks for `absolute`.
        observed: ‖observed‖².
        included: 1 where the victim's tensor is compared, 0 where it is numerically zero.
        absolute: ‖candidate − observed‖₁, if the distance asks for it.
        difference: ‖candidate − observed‖², from the same entries.
        violation: Σ max(−candidate · sign(observed), 0), if the distance asks for it.
        squared_violation: the same sum of squares.
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
        kept_only: compare only entries that pruning left, those not zero in the observed gradient (LTI, appendix A.1;
            GRAB, section 5.5.2).
        normalised: first scale the candidate's gradient to the observed one's norm (GRAB, section 5.5.1).
        entry_sums: sums over single entries that the distance needs: `absolute` or `violation`.
    """

    kept_only: bool = False
    normalised: bool = False
    entry_sums: ClassVar[frozenset[str]] = frozenset()

    @property
    def needs_entries(self) -> bool:
        """Whether single entries of the gradient are needed, not only its factors."""
        return self.kept_only or bool(self.entry_sums)

    @abstractmethod
    def __call__(self, sums: Sums) -> Tensor:
        """Return the distances `[victims, candidates]`."""


@dataclass(frozen=True, kw_only=True)
class SquaredL2(Distance):
    """Σ ‖·‖², the distance of DLG (Zhu et al. 2019)."""

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        return (sums.squared_difference * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class L2(Distance):
    """Σ ‖·‖, one norm per tensor."""

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
    """L2 + α · L1, the distance of TAG (Deng et al. 2021).

    Attributes:
        alpha: weight of L1.
        squared: square the L2 norm. LAMP's paper writes ‖·‖₂ (section 4.2), but its published code squares it, and its
            tables were made with that.
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
    """1 − the cosine, averaged over tensors (LAMP, section 4.2)."""

    def __call__(self, sums: Sums) -> Tensor:
        """Average over tensors."""
        cosine = sums.inner / (_root(sums.candidate) * _root(sums.observed)).clamp(min=1e-30)
        return 1 - (cosine * sums.included).sum(dim=0) / sums.included.sum(dim=0).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class WrongSign(Distance):
    """Size of the candidate's entries of the wrong sign, for sign compression (LTI, appendix A.1, equation 3).

    Σ ℓ² + α · Σ ℓ with ℓ = max(−candidate · sign(observed), 0). `benchmarks/inversion.py` uses it for TAG under sign
    compression, the baseline in docs/attacks/lti.md.

    Attributes:
        alpha: weight of the sum of ℓ, as in TAG; 0 for the squares alone.
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
    "sign": WrongSign,
}


def _root(squares: Tensor) -> Tensor:
    """Return the square root, with gradient zero at zero instead of infinity."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
