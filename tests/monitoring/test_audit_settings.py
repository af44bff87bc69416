"""Settings of an audit that make no sense are one line when the app starts, whatever framework it runs in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradleak.errors import GradleakError
from gradleak.monitoring import AuditSettings, Thresholds

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "threads as text": ({"threads": "2"}, "threads takes a whole number from 1 up, not '2'"),
    "threads": ({"threads": 0}, "threads takes a whole number from 1 up, not 0"),
    "seed as text": ({"seed": "a"}, "a seed is a whole number, not 'a'"),
    "seed": ({"seed": -1}, "a seed is a whole number from 0 up, not -1"),
    "device": ({"device": "gpu"}, "unknown device 'gpu'"),
    "no time": ({"budget": 0}, "budget takes a time above 0"),
    "classes": ({"num_labels": 10**9}, "a classifier has at most 100,000 labels"),
    "one class": ({"num_labels": 1}, "a classifier needs at least 2 labels, not 1"),
    "task": ({"task": "classify"}, "unknown task 'classify'; did you mean 'classification'"),
    "protocol": ({"protocol": {"lr": 1}}, "a protocol is text as optimizer=adamw"),
    "no protocol": ({"protocol": None}, "a protocol is text as optimizer=adamw"),
    "local_dp": ({"local_dp": 5}, "local_dp takes a LocalDpMod or .*; clipping_norm is missing"),
    "attack": ({"attack": None}, "unknown attack 'None'"),
    "adapter": ({"adapter": "nowhere"}, "there is no adapter in nowhere"),
    "both": ({"lora": "r=8", "adapter": "."}, "lora and adapter exclude each other"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_setting_that_makes_no_sense_is_refused_in_one_line(case: str) -> None:
    changes, message = WRONG[case]
    options = {"target": "tiny", "protocol": "lr=0.1,steps=1", **changes}
    with pytest.raises(GradleakError, match=message) as caught:
        AuditSettings.read(**options)
    assert "\n" not in str(caught.value)


def test_settings_can_be_given_as_text_or_as_they_are(tmp_path: Path) -> None:
    settings = AuditSettings.read(
        "tiny", "optimizer=adamw,lr=5e-5,steps=10,batch=4", budget="2m", adapter=tmp_path, seed=3
    )
    assert (settings.budget, settings.adapter, settings.seed) == (120.0, str(tmp_path), 3)
    assert AuditSettings(**settings.as_dict()) == settings


def test_a_limit_that_is_no_text_is_refused() -> None:
    with pytest.raises(GradleakError, match="refuse_above takes SCORE=NUMBER from 0 to 100, as rougeL=20, not 20"):
        Thresholds.parse(20)  # type: ignore[arg-type]
