"""The example of docs/attacks/lti.md runs as printed, and its table of settings is that of the code."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from gradleak.inversion import Recipe
from gradleak.settings import Setting, settings_of

DOCS = Path(__file__).parents[2] / "docs" / "attacks" / "lti.md"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    return block


def row(one: Setting) -> str:
    several = isinstance(one.default, tuple)
    default = ", ".join(map(str, one.default)) or "none" if several else str(one.default)
    return f"| `{one.name}` | {one.meaning} | {default.lower()} | {one.paper} |"


def test_the_table_lists_every_setting_of_a_recipe() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## Settings")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row(one) for one in settings_of(Recipe).values()]


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
