"""The documentation's Python examples run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import small_target
from gradleak.attacks import ATTACKS
from gradleak.exchange import Knowledge
from gradleak.federation import Client

ROOT = Path(__file__).parents[2]


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("README.md")
    assert len(example.strip().splitlines()) <= 12
    exec(example.replace('preset="fast"', "steps=3"), {})
    assert capsys.readouterr().out.strip()


def test_example_attack_is_a_complete_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradleak.attacks.base.ATTACKS", ATTACKS)
    (example,) = blocks("docs/adding-an-attack.md")
    assert len(example.splitlines()) <= 45
    try:
        exec(compile(example, "restarts.py", "exec", dont_inherit=True), {"__name__": "restarts"})
        attack = ATTACKS["restarts"].with_settings(settings={"steps": "30", "samples": "8"})
        target = small_target("bert")
        text = ["the cat sat"]
        update = Client(target).update(text, [1])
        known = Knowledge(labels=[1], lengths=target.encode(text).lengths)
        result, again = (attack(target, update, known) for _ in range(2))
        searched = ATTACKS["restarts"].with_settings(settings={"steps": "2", "samples": "2"})(target, update)
    finally:
        ATTACKS.pop("restarts", None)
    assert len(result.token_ids[0]) == 5
    assert result.token_ids == again.token_ids
    assert result.loss < 0.5
    assert result.history
    assert "lengths 3 to 24 tried" in searched.notes


def test_example_of_scores_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("docs/scores.md")
    exec(example, {})
    assert capsys.readouterr().out.strip() == example.strip().rpartition("# ")[2]
