"""The example of docs/attacks/lti.md runs as it is printed."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "attacks" / "lti.md"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    return block


def test_the_example_runs_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    small = example().replace("size=8_000", "size=300").replace("epochs=5", "epochs=2")
    assert small != example()
    exec(small, {})
    assert "% of the tokens of real sentences" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_finds_half_of_the_tokens_within_five_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    exec(example(), {})
    found = int(capsys.readouterr().out.split(" %")[0].split()[-1])
    assert found >= 50
    assert time.perf_counter() - started < 300
