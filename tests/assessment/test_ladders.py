from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.assessment.ladders import Bisection, Ladder, ladders
from gradleak.assessment.subject import Subject
from gradleak.defenses import parse_defense
from gradleak.defenses.dpsgd import DPSGD


def every(norm: float = 2.0, values: int = 10_000, batch_size: int = 1) -> dict[str, Ladder]:
    facts: dict[str, Any] = {"norm": norm, "example_norm": norm, "values": values, "seconds": 0.1}
    subject = Subject(target=None, texts=None, facts={}, **facts)  # type: ignore[arg-type]
    return {ladder.name: ladder for ladder in ladders(subject, batch_size)}


@given(st.integers(1, 40), st.data(), st.booleans())
def test_bisection_finds_the_mildest_rung_that_holds(count: int, data: st.DataObject, top_first: bool) -> None:
    end = data.draw(st.integers(0, count))  # rungs from here on hold; none if it is the number of rungs
    search, tried = Bisection(count, top_first), []
    while (rung := search.next) is not None:
        tried.append(rung)
        search.see(rung, leaks=rung < end)
    assert search.high == (None if end == count else end)
    assert search.leaks_at_strongest == (end == count)
    assert len(tried) == len(set(tried)) <= math.ceil(math.log2(count + 1)) + 1
    if top_first and end == count:
        assert tried == [count - 1]


def test_every_rung_is_a_defense_that_exists_and_strength_rises() -> None:
    for ladder in every().values():
        assert [rung.place for rung in ladder.rungs] == sorted(rung.place for rung in ladder.rungs)
        for rung in ladder.rungs:
            assert (rung.defense is None) != (rung.send is None)
            if rung.defense:
                parse_defense(rung.defense)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_noise_of_a_ratio_has_that_share_of_the_updates_norm(ratio: float) -> None:
    ladder = every(norm=2.0, values=10_000)["noise"]
    rung = next(rung for rung in ladder.rungs if rung.label == f"{ratio:g}")
    deviation = float((rung.defense or "").removeprefix("noise:"))
    assert deviation * math.sqrt(10_000) / 2.0 == pytest.approx(ratio, rel=1e-3)


def test_noise_multiplier_of_dpsgd_is_that_of_the_defense() -> None:
    for rung in every(batch_size=8)["dpsgd"].rungs:
        defense = parse_defense(rung.defense or "")
        assert isinstance(defense, DPSGD)
        assert rung.multiplier == pytest.approx(defense.noise_multiplier(8), rel=1e-3)
