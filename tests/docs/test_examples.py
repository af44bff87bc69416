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
    assert len(example.splitlines()) <= 60
    try:
        exec(compile(example, "shuffle.py", "exec", dont_inherit=True), {"__name__": "shuffle"})
        attack = ATTACKS["shuffle"].with_settings(settings={"rounds": "15", "candidates": "60"})
        target = small_target("bert")
        text = ["the cat sat"]
        update = Client(target).update(text, [1])
        result = attack(target, update, Knowledge(labels=[1], lengths=target.encode(text).lengths))
        again = attack(target, update, Knowledge(labels=[1], lengths=target.encode(text).lengths))
    finally:
        ATTACKS.pop("shuffle", None)
    assert len(result.token_ids[0]) == 5
    assert result.token_ids == again.token_ids
    assert result.loss < 0.9


def test_example_of_scores_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("docs/scores.md")
    exec(example, {})
    assert capsys.readouterr().out.strip() == example.strip().rpartition("# ")[2]
