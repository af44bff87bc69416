from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.exchange import Deadline, Progress, Reporter, progress


class Clock:
    """A clock that tests set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_reports_come_at_most_once_in_an_interval_and_always_at_the_end(clock: Clock) -> None:
    heard: list[Progress] = []
    looks: list[int] = []
    report = Reporter(heard.append, interval=1.0)
    for step in range(1, 12):
        clock.now += 0.4

        def look(step: int = step) -> tuple[float, tuple[str, ...]]:
            looks.append(step)
            return step / 10, (f"text {step}",)

        report(step, 11, look)
    assert [p.step for p in heard] == [1, 4, 7, 10, 11]
    assert looks == [1, 4, 7, 10, 11], "a loss is looked at only if somebody hears of it"
    assert heard[1] == Progress(4, 11, 0.4, ("text 4",), pytest.approx(1.6), 1, pytest.approx(0.4))


def test_nobody_listening_means_that_nothing_is_looked_at() -> None:
    def look() -> tuple[float, tuple[str, ...]]:
        raise AssertionError("looked")

    Reporter()(5, 5, look)


@given(step=st.integers(1, 1000), rest=st.integers(0, 1000), pace=st.floats(1e-3, 100))
def test_seconds_left_follow_from_the_pace_so_far(step: int, rest: int, pace: float) -> None:
    left = Progress(step, step + rest, 0.0, (), pace * step).seconds_left
    assert math.isclose(left, pace * rest, rel_tol=1e-9)


def test_the_time_before_the_first_step_is_not_the_steps(clock: Clock) -> None:
    heard: list[Progress] = []
    report = Reporter(heard.append, interval=0.0)
    clock.now += 500  # a start is searched
    for step in (1, 2, 3, 1, 2):  # another run begins after the third
        clock.now += 2
        report(step, 10, lambda: (0.0, ()))
    assert [p.seconds_left for p in heard] == [math.inf, 16, 14, math.inf, 16]


def test_before_the_first_step_nobody_knows_how_long_it_takes() -> None:
    assert Progress(0, 10, 0.0, (), 3.0).seconds_left == math.inf


def test_parts_of_a_run_add_up_whatever_they_count_themselves() -> None:
    heard: list[Progress] = []
    deadline = Deadline(100.0)
    whole = Reporter(heard.append, interval=0.0, deadline=deadline)
    one, other = whole.split([6, 4])
    assert one.deadline is other.deadline is deadline
    steps = [(one, 1, 2), (other, 10, 40), (one, 2, 2), (other, 40, 40)]
    for part, step, total in steps:
        part(step, total, lambda: (0.5, ("text",)))
    assert [(p.step, p.total) for p in heard] == [(3, 10), (4, 10), (7, 10), (10, 10)]
    assert heard[-1].texts == ("text",)


def test_a_part_of_a_run_has_parts_itself() -> None:
    heard: list[Progress] = []
    _, second = Reporter(heard.append, interval=0.0).split([5, 10])
    for part in second.split([1, 1]):
        part(7, 7, lambda: (0.0, ()))
    assert [(p.step, p.total) for p in heard] == [(5, 15), (10, 15)]
