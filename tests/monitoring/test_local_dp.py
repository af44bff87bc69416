"""What a stated local differential privacy is worth."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from gradleak.errors import GradleakError
from gradleak.monitoring.local_dp import LocalDp, gaussian_epsilon, quietest

CLINICAL = LocalDp(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)


@given(ratio=st.floats(0.05, 20), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_epsilon_is_where_the_privacy_profile_crosses_delta(ratio: float, delta: float) -> None:
    def profile(epsilon: float) -> float:
        return float(norm.cdf(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * norm.cdf(-ratio / 2 - epsilon / ratio))

    found = gaussian_epsilon(ratio, delta)
    assert profile(found * 1.001 + 1e-6) <= delta * (1 + 1e-6)
    assert found == 0 or profile(found * 0.999) >= delta * (1 - 1e-6)


def test_the_classical_rule_is_not_better_than_the_exact_one_where_it_is_proven() -> None:
    for epsilon in (0.2, 0.5, 0.9):
        honest = LocalDp(clipping_norm=1.0, sensitivity=1.0, epsilon=epsilon, delta=1e-5)
        assert honest.real_epsilon <= epsilon
        assert honest.warning is None


def test_a_sensitivity_below_the_clipping_norm_makes_epsilon_nominal() -> None:
    assert CLINICAL.deviation == pytest.approx(1e-4 * math.sqrt(2 * math.log(1.25e5)) / 10)
    assert CLINICAL.real_epsilon > 1e7
    assert CLINICAL.warning is not None
    assert "ε = 10 is nominal" in CLINICAL.warning
    assert "Set sensitivity to clipping_norm" in CLINICAL.warning


@pytest.mark.parametrize("frozen", [True, False])
def test_noise_that_arrived_is_told_from_noise_that_did_not(frozen: bool) -> None:
    stated = LocalDp(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=1e-5)
    stream = torch.Generator().manual_seed(0)
    change = {"a": 1e-3 * torch.randn(64, 64, generator=stream), "b": torch.zeros(256)}
    if not frozen:
        del change["b"]
    noisy = {n: t + stated.deviation * torch.randn(t.shape, generator=stream) for n, t in change.items()}
    arrived, missing = stated.arrival(noisy), stated.arrival(change)
    assert arrived is not None
    assert arrived[0]
    assert missing is not None
    assert not missing[0]
    assert "the noise did not arrive" in missing[1]
    measured = quietest(noisy)
    assert measured == pytest.approx(stated.deviation, rel=0.2)


def test_tensors_too_small_to_measure_say_nothing() -> None:
    assert CLINICAL.arrival({"bias": torch.zeros(3)}) is None


def test_settings_come_from_a_mod_a_mapping_or_text() -> None:
    fields = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5}
    texts = "clipping_norm=1,sensitivity=1e-4,epsilon=10,delta=1e-5"
    assert LocalDp.read(SimpleNamespace(**fields)) == LocalDp.read(fields) == LocalDp.read(texts) == CLINICAL
    assert LocalDp.read(str(CLINICAL)) == CLINICAL


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("clipping=1", "unknown setting of local_dp 'clipping'; did you mean 'clipping_norm'"),
        ("epsilon=0", "epsilon must be above 0"),
        ({"epsilon": 1.0}, "clipping_norm is missing"),
    ],
)
def test_what_makes_no_sense_is_refused(stated: object, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        LocalDp.read(stated)
