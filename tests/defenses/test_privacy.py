"""The privacy loss of DP-SGD is Opacus's."""

from __future__ import annotations

import sys

import pytest

from gradleak.defenses import epsilon
from gradleak.errors import GradleakError

RDPAccountant = pytest.importorskip("opacus.accountants", reason="opacus is an extra").RDPAccountant
GRAB_TABLE_6 = {0.001: 1.10e10, 0.002: 2.75e9, 0.005: 4.38e8, 0.01: 1.08e8, 0.02: 2.55e7, 0.05: 2.37e6}


@pytest.mark.parametrize(("multiplier", "rate", "steps"), [(1.0, 0.01, 100), (0.5, 0.32, 12), (4.0, 1.0, 3)])
def test_epsilon_is_that_of_opacus_stepping(multiplier: float, rate: float, steps: int) -> None:
    accountant = RDPAccountant()
    for _ in range(steps):
        accountant.step(noise_multiplier=multiplier, sample_rate=rate)
    assert epsilon(multiplier, rate, steps) == pytest.approx(accountant.get_epsilon(1e-5))
    assert epsilon(multiplier, rate, steps, delta=1e-3) < epsilon(multiplier, rate, steps)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("level", "published"), GRAB_TABLE_6.items())
def test_epsilon_of_grabs_table_6(level: float, published: float) -> None:
    # Its noise level is the noise multiplier; batches of 1 of 10,000 examples over 2 epochs give all six figures.
    assert epsilon(level, 1 / 10_000, 20_000) == pytest.approx(published, rel=0.005)


def test_no_noise_is_no_privacy() -> None:
    assert epsilon(0.0, 0.1, 10) == float("inf")


@pytest.mark.parametrize("numbers", [(-1.0, 0.1, 1), (1.0, 0.0, 1), (1.0, 1.1, 1), (1.0, 0.1, 0), (1.0, 0.1, 1, 0.0)])
def test_epsilon_refuses_nonsense(numbers: tuple[float, float, int]) -> None:
    with pytest.raises(GradleakError, match="epsilon needs"):
        epsilon(*numbers)


def test_missing_opacus_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(GradleakError, match=r"the privacy loss of dpsgd needs opacus: pip install 'gradleak\[dp\]'"):
        epsilon(1.0, 0.1, 1)
