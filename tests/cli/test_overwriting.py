"""No output takes the place of an input or of another output, by whatever path it is named; all is as it was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import TEXT, save_model

from conftest import small_target
from gradleak.cli import main
from gradleak.federation import Client

STUDY = """
[[grid]]
target = ["model"]
dataset = [{ name = "p.txt" }]
attack = [{ name = "lamp", settings = { steps = 1, prior = "prior" } }]

[[utility]]
target = ["model"]
train = [{ name = "train.csv" }]
test = [{ name = "p.txt" }]
"""
ATTACK, CAPTURE, INVERT = ["attack", "--attack", "tag"], ["capture"], ["invert", "train", "--model", "model"]
LAMP, MODEL = ["attack", "--attack", "lamp"], ["--model", "model"]
COMMANDS = {
    "study: records and json": ["study", "run", "w.toml", "-o", "z.db", "--json", "z.db"],
    "study: usual records and json": ["study", "run", "w.toml", "--json", "w.db"],
    "study: records on the study": ["study", "run", "w.toml", "-o", "w.toml"],
    "study: json on the study": ["study", "run", "w.toml", "--json", "w.toml"],
    "study: json on its text": ["study", "run", "w.toml", "--json", "p.txt"],
    "study: json on its training text": ["study", "run", "w.toml", "--json", "train.csv"],
    "study: json on its model": ["study", "run", "w.toml", "--json", "model/config.json"],
    "study: json on its prior": ["study", "run", "w.toml", "--json", "prior/tokenizer.json"],
    "study: json on another model": ["study", "run", "w.toml", "--target", "prior", "--json", "prior/config.json"],
    "show: json": ["study", "show", "s.db", "--json", "s.db"],
    "show: plot": ["study", "show", "s.db", "--plot", "s.db"],
    "show: plot and json": ["study", "show", "s.db", "--plot", "a.png", "--json", "a.png"],
    "attack: text": [*ATTACK, *MODEL, "--dataset", "p.txt", "--json", "p.txt"],
    "attack: text by another path": [*ATTACK, *MODEL, "--dataset", "p.txt", "--json", "model/../p.txt"],
    "attack: text by a link": [*ATTACK, *MODEL, "--dataset", "p.txt", "--json", "link"],
    "attack: linked text": [*ATTACK, *MODEL, "--dataset", "link", "--json", "p.txt"],
    "attack: text by a hard link": [*ATTACK, *MODEL, "--dataset", "p.txt", "--json", "hard"],
    "attack: update": [*ATTACK, *MODEL, "--update", "u", "--json", "u"],
    "attack: model": [*ATTACK, *MODEL, TEXT, "--json", "model/config.json"],
    "attack: weights": [*ATTACK, *MODEL, TEXT, "--json", "model/model.safetensors"],
    "attack: prior": [*LAMP, *MODEL, TEXT, "--set", "prior=prior", "--json", "prior/config.json"],
    "capture: update and json": [*CAPTURE, *MODEL, TEXT, "-o", "a", "--json", "a"],
    "capture: text": [*CAPTURE, *MODEL, "--dataset", "p.txt", "-o", "p.txt"],
    "capture: text and json": [*CAPTURE, *MODEL, "--dataset", "p.txt", "-o", "a", "--json", "p.txt"],
    "capture: model": [*CAPTURE, *MODEL, TEXT, "-o", "model/model.safetensors"],
    "invert: text": [*INVERT, "--text", "p.txt", "-o", "i", "--json", "p.txt"],
    "invert: held-out text": [*INVERT, "--text", "cola", "--held-out", "p.txt", "-o", "i", "--json", "p.txt"],
    "invert: other text": [*INVERT, "--text", "cola", "--other", "p.txt", "-o", "i", "--json", "p.txt"],
    "invert: inverter and json": [*INVERT, "--text", "p.txt", "-o", "old", "--json", "old/inverter.safetensors"],
    "invert: model": [*INVERT, "--text", "p.txt", "-o", "i", "--json", "model/tokenizer.json"],
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with one of everything that can be read."""
    monkeypatch.chdir(tmp_path)
    bert = small_target("bert")
    save_model(bert, tmp_path / "model")
    save_model(small_target("gpt2", "causal-lm"), tmp_path / "prior")
    Client(bert).update([TEXT], [1]).save("u")
    Path("p.txt").write_text("the cat sat\na big dog ran\n", encoding="utf-8")
    Path("train.csv").write_text("text,label\nthe cat,0\na dog,1\n", encoding="utf-8")
    Path("w.toml").write_text(STUDY, encoding="utf-8")
    Path("s.db").write_bytes(b"records")
    Path("old").mkdir()
    Path("old/inverter.safetensors").write_bytes(b"trained for days")
    os.symlink("p.txt", "link")
    os.link("p.txt", "hard")
    return tmp_path


def state(place: Path) -> dict[str, str]:
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_an_output_that_would_overwrite_is_refused_before_anything_is_written(
    place: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(place)
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gradleak: --")
    assert said.err.count("\n") == 1
    assert "would overwrite what is read from" in said.err or "are one file; give two" in said.err
    assert state(place) == before


@pytest.mark.parametrize(
    "arguments",
    [
        [*ATTACK, "--model", ".", "--dataset", "../p.txt", "--set", "steps=1", "--json", "result.json"],
        [*ATTACK, "--model", ".", TEXT, "--set", "steps=1", "--json", "sub/result.json"],
        [*CAPTURE, "--model", ".", "--dataset", "../p.txt", "-o", "update.safetensors", "--json", "c.json"],
    ],
)
def test_results_may_lie_beside_what_is_read_and_be_written_again(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("model")
    Path("sub").mkdir()
    for _ in range(2):
        assert main([*arguments, "--quiet"]) == 0
