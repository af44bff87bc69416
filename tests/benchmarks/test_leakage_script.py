"""The script that attacks sentence by sentence and keeps what was found in a file."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "leakage.py"
NAME = "cola frozen B=1 tag,steps=1"
Leakage = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leakage", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def found(tmp_path: Path) -> Path:
    return tmp_path / "found.json"


@pytest.fixture
def leakage(script: ModuleType, found: Path, monkeypatch: pytest.MonkeyPatch) -> Leakage:
    """Run the script on some of four sentences; give the rows of its file."""
    monkeypatch.chdir(found.parent)
    for name in ("cola.tsv", "cola.txt"):
        lines = ["1\tThe cat sees the king.", "0\tCat the.", "1\tDogs run.", "0\tRun a."]
        Path(name).write_text("\n".join(["label\ttext", *lines]) + "\n", encoding="utf-8")

    def run(*arguments: str, attack: str = "tag,steps=1") -> list[dict[str, Any]]:
        usual = ["--data", "cola.tsv", "--take", "0:2", "--device", "cpu", "--attack", attack, "-o", str(found)]
        monkeypatch.setattr(sys, "argv", ["leakage.py", *usual, *arguments])
        script.main()
        return json.loads(found.read_text(encoding="utf-8"))["rows"]

    return run


def test_a_row_tells_what_it_was_made_from(leakage: Leakage) -> None:
    (row,) = leakage("--seed", "3")
    assert row["name"] == NAME
    assert row["made_from"] == {"model": "tiny", "data": "cola.tsv", "take": "0:2", "seed": 3}


def test_fewer_sentences_than_asked_for_are_said(leakage: Leakage, capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = leakage("--take", "2:6")
    said = "fewer sentences than asked for: cola.tsv has 4 sentences, 2 of 2:6 are attacked\n"
    assert (row["sentences"], capsys.readouterr().err) == (2, said)
    assert leakage("--take", "2:6")[0]["sentences"] == 2
    capsys.readouterr()
    leakage("--take", "0:4", attack="dlg,steps=1")
    assert capsys.readouterr().err == ""


def test_a_part_behind_the_last_sentence_attacks_nothing(
    script: ModuleType, leakage: Leakage, found: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leakage()
    before = found.read_bytes()
    monkeypatch.setattr(script, "load_target", lambda *_, **__: pytest.fail("a model was loaded"))
    leakage("--take", "8:16", attack="dlg,steps=1")
    assert found.read_bytes() == before


def test_the_same_run_is_not_made_again(leakage: Leakage) -> None:
    assert leakage() == leakage()


@pytest.mark.parametrize(
    "other",
    [["--model", "textcnn"], ["--random-weights"], ["--take", "2:4"], ["--seed", "1"], ["--data", "cola.txt"]],
    ids=lambda other: other[0],
)
def test_another_run_of_one_name_is_refused_before_a_model_is_loaded(
    leakage: Leakage,
    script: ModuleType,
    found: Path,
    other: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leakage()
    before = found.read_bytes()
    capsys.readouterr()
    monkeypatch.setattr(script, "load_target", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(SystemExit) as end:
        leakage("--attack", "tag,steps=1", *other, attack="lamp")  # what is refused need not come first
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"{found} holds '{NAME}' of model tiny, sentences 0:2 of cola.tsv, seed 0: choose another file\n"
    )
    assert found.read_bytes() == before


def test_another_attack_joins_the_file_whatever_it_was_made_from(leakage: Leakage) -> None:
    leakage()
    rows = leakage("--seed", "1", attack="dlg,steps=1")
    assert [row["made_from"]["seed"] for row in rows] == [0, 1]


def test_rows_that_do_not_tell_are_continued_and_scored(
    leakage: Leakage,
    script: ModuleType,
    found: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (old,) = leakage()
    del old["made_from"]
    found.write_text(json.dumps({"rows": [old]}), encoding="utf-8")
    (row,) = leakage("--take", "0:4")
    assert row["sentences"] == 4
    assert row["texts"][:2] == old["texts"]
    assert "made_from" not in row
    monkeypatch.setattr(sys, "argv", ["leakage.py", "--score", str(found)])
    script.main()
    assert f"found: {NAME}" in capsys.readouterr().out


def test_intervals_draw_whole_batches(
    script: ModuleType, found: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cat, dog = [101, 4937, 102], [101, 3899, 102]
    row = {"name": "mine", "seconds": 4.0, "each": [1.0] * 4, "sentences": 16, "references": [[cat] * 4] * 4}
    row["reconstructions"] = [[cat] * 4, [dog] * 4] * 2  # each batch found in full or not at all
    found.write_text(json.dumps({"rows": [row]}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["leakage.py", "--score", str(found)])
    script.main()
    assert "50.0 (0.0–100.0)" in capsys.readouterr().out
