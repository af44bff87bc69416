"""Local differential privacy as clients state it: what its ε is worth, and whether its noise is in an update.

Flower's `LocalDpMod` clips an update to `clipping_norm` and adds noise for another number, `sensitivity`. If that is
smaller than the clipping norm, the ε of its settings is nominal: two updates may lie further apart than the noise was
made for. The ε here is the one of the Gaussian mechanism for the clipping norm (Balle & Wang 2018, theorem 8), which
holds for every ε; the rule in `LocalDpMod`, √(2 ln(1.25/δ))/σ, is proven for ε below 1 alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.settings import check_settings, parse_settings_text, setting, settings_of, settings_texts

FORM = "clipping_norm=1,sensitivity=1,epsilon=8,delta=1e-5"
ARRIVED = 0.5
"""Noise has arrived if an update's quietest tensor has at least this fraction of the stated deviation."""

LEAST_ENTRIES = 64
"""Tensors with fewer entries are no measure of noise."""

MEDIAN = 1.4826
"""The standard deviation of normal noise, in units of its median size."""


@dataclass(frozen=True, kw_only=True)
class LocalDp:
    """The settings of a `LocalDpMod`."""

    clipping_norm: float = setting(1.0, "largest norm of an update", above=0)
    sensitivity: float = setting(1.0, "the distance of two updates that the noise is made for", above=0)
    epsilon: float = setting(1.0, "the stated ε", above=0)
    delta: float = setting(1e-5, "the stated δ", above=0, most=1)

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def read(cls, stated: object) -> LocalDp:
        """Return the settings of a `LocalDpMod`, a mapping, or text like `clipping_norm=1,sensitivity=1,epsilon=8`."""
        if isinstance(stated, str):
            return cls(**parse_settings_text(cls, stated, "local_dp", FORM))
        names = settings_of(LocalDp)
        source = stated if isinstance(stated, Mapping) else getattr(stated, "__dict__", {})
        missing = [name for name in names if name not in source]
        if missing:
            raise GradleakError(f"local_dp takes a LocalDpMod or {FORM}; {missing[0]} is missing")
        return cls(**{name: float(source[name]) for name in names})

    def __str__(self) -> str:
        return ",".join(settings_texts(vars(self)))

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise that `LocalDpMod` adds to every entry."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def real_epsilon(self) -> float:
        """The ε, at the stated δ, of this noise on updates of the clipping norm."""
        return gaussian_epsilon(self.clipping_norm / self.deviation, self.delta)

    @property
    def warning(self) -> str | None:
        """One line if the stated ε is nominal; None if it is not."""
        if self.sensitivity >= self.clipping_norm:
            return None
        return (
            f"ε = {self.epsilon:g} is nominal: the noise was made for a sensitivity of {self.sensitivity:g}, updates "
            f"are clipped at {self.clipping_norm:g}; for that it gives ε = {self.real_epsilon:.3g}. Set sensitivity to "
            f"clipping_norm"
        )

    def arrival(self, tensors: Mapping[str, Tensor]) -> tuple[bool, str] | None:
        """Return whether the noise is in an update, and what was measured in words; None if it cannot be told.

        Args:
            tensors: differences of weights by name, frozen ones, too: noise is added to every tensor, so that the
                quietest one bounds it from above.
        """
        measured = quietest(tensors)
        if measured is None:
            return None
        stated = f"stated is {self.deviation:.2g}"
        if measured < ARRIVED * self.deviation:
            return False, f"the noise did not arrive: at most {measured:.2g} for each entry; {stated}"
        return True, f"noise of at most {measured:.2g} for each entry is there; {stated}"


def quietest(tensors: Mapping[str, Tensor]) -> float | None:
    """Return the deviation of the quietest tensor's entries, by their median; None without a tensor large enough."""
    large = [tensor.flatten() for tensor in tensors.values() if tensor.numel() >= LEAST_ENTRIES]
    if not large:
        return None
    return min(MEDIAN * float(torch.quantile(_sample(tensor).abs().double(), 0.5)) for tensor in large)


def _sample(entries: Tensor, most: int = 2**20) -> Tensor:
    return entries[:: max(1, entries.numel() // most)][:most]


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Return ε of the Gaussian mechanism at δ (Balle & Wang 2018, theorem 8).

    Args:
        ratio: sensitivity over the standard deviation of the noise.
        delta: δ.
    """

    def excess(epsilon: float) -> float:
        first = log_ndtr(ratio / 2 - epsilon / ratio)
        second = epsilon + log_ndtr(-ratio / 2 - epsilon / ratio)
        return float(math.exp(first) - math.exp(min(second, 0.0)) - delta)

    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
    return float(brentq(excess, 0.0, top, rtol=1e-9))
