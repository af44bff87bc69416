"""The time of an audit: seconds outside cells count, and count the same in a later run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.assessment.clock import LOST, AuditClock, LostTime
from gradleak.assessment.plan import STARTUP, AuditPlan
from gradleak.assessment.training import Trainings
from gradleak.errors import GradleakError
from gradleak.studies.records.store import Store

PLAN = AuditPlan(seconds=3.0, patience=18.0, sample=16, probe=2, sizes=(), epochs=0, steps=0)


def clock_of(lost: LostTime) -> AuditClock:
    nothing = Trainings(None, None, PLAN, None, None)  # type: ignore[arg-type] - no training is begun
    return AuditClock(
        budget=100.0, startup=4.0, slots=2, clients=1, plan=PLAN, results={}, trainings=nothing, lost=lost
    )


def test_seconds_outside_cells_are_spent_and_remembered(tmp_path: Path) -> None:
    with Store(tmp_path / "study.db") as store:
        lost = LostTime(store)
        clock = clock_of(lost)
        lost.pass_step("own setup, 1 updates", 20.0)
        lost.pass_step("own setup, 2 updates", -0.3)  # cells that overlapped
        assert clock.spent == STARTUP + 4.0 + 20.0
    with Store(tmp_path / "study.db") as store:
        again = LostTime(store)
        assert clock_of(again).spent == STARTUP + 4.0, "decisions are repeated in their order"
        again.pass_step("own setup, 1 updates", 0.0)  # found in the file, so that no time passed
        assert clock_of(again).spent == STARTUP + 4.0 + 20.0


@pytest.mark.parametrize("kept", ['{"own": "x"}', '{"own": -1}', '{"own": 1e999}', "[]", "{"])
def test_a_damaged_clock_is_one_line(tmp_path: Path, kept: str) -> None:
    with Store(tmp_path / "study.db") as store:
        store.describe({LOST: kept})
        with pytest.raises(GradleakError, match=r"study\.db"):
            LostTime(store)


def test_an_update_that_is_given_less_time_costs_less(tmp_path: Path) -> None:
    with Store(tmp_path / "study.db") as store:
        clock = clock_of(LostTime(store))
        assert clock.affordable(2, 80.0)
        assert not clock.affordable(2, 90.0)
        assert not clock.affordable(3, 45.0), "two workers take three updates one after the other"
