from __future__ import annotations

import pytest

from gradleak.errors import GradleakError
from gradleak.monitoring import Thresholds

SCORES = {"rouge1": 50.0, "rouge2": 10.0, "rougeL": 20.0, "exact": 0.0, "token_accuracy": 5.0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, None),
        ("rougeL=20", None),
        ("rougeL=19.5", "rougeL 20.0 is above 19.5"),
        ("exact=0", None),
        ("exact=0, rouge1=49", "rouge1 50.0 is above 49"),
    ],
)
def test_the_first_score_above_its_limit_is_named(text: str | None, why: str | None) -> None:
    assert Thresholds.parse(text).exceeded(SCORES) == why


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rougl=20", "unknown score of refuse_above 'rougl'; did you mean 'rougeL'"),
        ("rougeL", "takes SCORE=NUMBER from 0 to 100"),
        ("rougeL=101", "takes SCORE=NUMBER from 0 to 100"),
        ("rougeL=nan", "takes SCORE=NUMBER from 0 to 100"),
    ],
)
def test_what_is_no_limit_is_refused(text: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Thresholds.parse(text)
