"""Which inverters can read an update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradleak.exchange import Origin
from gradleak.inverters.card import Card
from gradleak.inverters.selection import InverterNeeds

CARD = Card(origin=Origin("small", "causal-lm", 42, 0, "ec21861e"), parameters=("a", "b"), tokens=6, shortest=4)
NEEDS = InverterNeeds(sent={"a", "b", "c"}, longest=6)


def test_an_inverter_for_other_defenses_can_read_an_update() -> None:
    assert NEEDS.misfit(CARD) is None
    assert replace(NEEDS, defenses=("sign",)).misfit(CARD) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sequences": 2}, "batches of 1, and this one has 2"),
        ({"sent": {"a"}}, "the gradient of b, which was not sent"),
        ({"longest": 7}, "at most 6 tokens, and this text has 7"),
        ({"pseudo_only": True}, "on text, not on pseudo-data alone"),
    ],
    ids=str,
)
def test_an_inverter_that_cannot_read_an_update_says_why(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(replace(NEEDS, **changes).misfit(CARD))
