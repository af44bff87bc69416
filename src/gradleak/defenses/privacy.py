"""The privacy loss of DP-SGD, as Opacus accounts for it."""

from __future__ import annotations

import warnings

from gradleak.errors import GradleakError, missing_extra

DELTA = 1e-5


def epsilon(noise_multiplier: float, sample_rate: float, steps: int, delta: float = DELTA) -> float:
    """Return ε of (ε, δ)-differential privacy by Opacus's RDP accountant.

    Args:
        noise_multiplier: z, the noise on the sum of a batch in clipping norms (`DPSGD.noise_multiplier`).
        sample_rate: the probability that an example is in a batch: batch size over number of examples.
        steps: number of batches.
        delta: δ.

    Raises:
        GradleakError: if Opacus is not installed, or a number is out of its range.
    """
    try:
        from opacus.accountants import RDPAccountant  # type: ignore[import, unused-ignore]
    except ImportError:
        raise missing_extra("opacus", "dp", "the privacy loss of dpsgd") from None
    if not (noise_multiplier >= 0 and 0 < sample_rate <= 1 and steps >= 1 and 0 < delta < 1):
        raise GradleakError(
            "epsilon needs a noise multiplier of 0 or more, a sample rate above 0 and at most 1, "
            "at least one step, and a delta between 0 and 1"
        )
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, sample_rate, steps)]
    with warnings.catch_warnings():  # at the ends of its range of orders the bound is loose, but valid
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta))
