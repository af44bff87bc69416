"""Components of FLARE: what they refuse when a job is made, and how they aggregate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from gradleak.errors import GradleakError
from gradleak.flare import AuditAggregator, TextLeakageFilter
from gradleak.flare.audit_aggregator import WeightedMean
from gradleak.flare.leakage_filter import after_training
from gradleak.flare.texts import read_texts

PROTOCOL = "steps=1,lr=0.1"
FILTER: dict[str, Any] = {"target": "tiny", "protocol": PROTOCOL, "texts": "{site}.txt"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "target": ({"target": "tinny"}, "did you mean 'tiny'"),
    "protocol": ({"protocol": "step=1,lr=1"}, "did you mean 'steps'"),
    "texts": ({"texts": ["a text"]}, "texts takes a .txt file"),
    "limit": ({"refuse_above": "rougl=2"}, "did you mean 'rougeL'"),
    "every": ({"every": 0}, "every takes a whole number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_refused_when_the_job_is_made(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(GradleakError, match=message):
        TextLeakageFilter(**{**FILTER, **changes})
    server = {name: value for name, value in changes.items() if name in ("target", "protocol", "every")}
    if server:
        with pytest.raises(GradleakError, match=message):
            AuditAggregator(**{"target": "tiny", "protocol": PROTOCOL, **server})


def test_only_an_aggregator_can_be_wrapped() -> None:
    with pytest.raises(GradleakError, match="wraps a ModelAggregator; str is none"):
        AuditAggregator("tiny", PROTOCOL, aggregator="mean")  # type: ignore[arg-type]


def model(value: float, steps: float, name: str) -> FLModel:
    meta = {"NUM_STEPS_CURRENT_ROUND": steps, "client_name": name}
    return FLModel(params={"w": np.full(3, value)}, params_type=ParamsType.FULL, meta=meta, current_round=0)


def test_the_aggregate_is_that_of_the_aggregator_inside() -> None:
    alone, around = WeightedMean(), AuditAggregator("tiny", PROTOCOL)
    for each in (alone, around):
        each.reset_stats()
        for result in (model(1.0, 1, "a"), model(4.0, 2, "b")):
            each.accept_model(result)
    expected = alone.aggregate_model().params["w"]
    assert np.array_equal(expected, around.aggregate_model().params["w"])
    np.testing.assert_allclose(expected, 3.0)


def test_differences_are_added_to_the_weights_that_were_sent() -> None:
    before = {"w": np.ones(3), "frozen": np.zeros(2)}
    assert np.array_equal(after_training({"w": np.ones(3)}, before, differences=True)["w"], np.full(3, 2.0))
    assert np.array_equal(after_training({"w": np.ones(3)}, before, differences=False)["w"], np.ones(3))
    with pytest.raises(GradleakError, match="a difference of 'v', which was not sent"):
        after_training({"v": np.ones(3)}, before, differences=True)


def test_texts_come_from_a_file_or_a_function(tmp_path: Any) -> None:
    (tmp_path / "site-1.txt").write_text("the first\n\nthe second\n", encoding="utf-8")
    assert read_texts(str(tmp_path / "{site}.txt"), "site-1", 0) == ["the first", "the second"]
    assert read_texts("itertools:repeat", "site-1", 2) == ["site-1", "site-1"]
    with pytest.raises(GradleakError, match="cannot be read"):
        read_texts(str(tmp_path / "{site}.txt"), "site-2", 0)
    with pytest.raises(GradleakError, match="has no attribute"):
        read_texts("itertools:nothing", "site-1", 0)
