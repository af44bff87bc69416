"""Files of a model run nothing unasked, whoever reads them, and nobody is asked on standard input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import gradleak
from conftest import small_target
from gradleak.errors import GradleakError
from gradleak.priors import load_prior
from gradleak.targets import load_target

OWN_CODE = """
from pathlib import Path
from transformers import PretrainedConfig

Path({trace!r}).touch()


class OwnConfig(PretrainedConfig):
    model_type = "own"


class OwnTokenizer:
    @classmethod
    def from_pretrained(cls, *_, **__):
        raise OSError("it was run")
"""
Loader = Callable[[Path], Any]


def as_prior(folder: Path) -> Any:
    return load_prior(str(folder), small_target())


def as_target(folder: Path) -> Any:
    return load_target(str(folder), task="causal-lm")


def as_random_target(folder: Path) -> Any:
    return load_target(str(folder), task="causal-lm", random_weights=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A causal language model that every loader takes."""
    place = tmp_path / "model"
    target = small_target("gpt2", "causal-lm")
    target.model.save_pretrained(place)  # type: ignore[operator]
    target.tokenizer.save_pretrained(place)
    return place


@pytest.fixture(autouse=True)
def yes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somebody who says yes to every question; the questions."""
    asked: list[str] = []

    def answer(question: str = "") -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return asked


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def own_config(folder: Path) -> Path:
    trace = folder / "was-run"
    (folder / "own.py").write_text(OWN_CODE.format(trace=str(trace)))
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    return trace


def own_model(folder: Path) -> Path:
    trace = folder / "was-run"
    (folder / "own.py").write_text(OWN_CODE.format(trace=str(trace)))
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "own.OwnForCausalLM"})
    return trace


def own_tokenizer(folder: Path) -> Path:
    trace = folder / "was-run"
    (folder / "own.py").write_text(OWN_CODE.format(trace=str(trace)))
    mapped = {"AutoTokenizer": ["own.OwnTokenizer", None]}
    edit(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=mapped)
    return trace


@pytest.mark.parametrize(
    ("load", "spoil"),
    [
        *((load, spoil) for load in (as_prior, as_target, as_random_target) for spoil in (own_config, own_tokenizer)),
        (as_target, own_model),
    ],
)
def test_code_that_comes_with_a_model_is_refused_in_one_line_and_without_a_question(
    folder: Path, yes: list[str], load: Loader, spoil: Callable[[Path], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    load(folder)
    trace = spoil(folder)
    capfd.readouterr()
    with pytest.raises(GradleakError, match=r"comes with code of its own, which is (run only|not run)") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not trace.exists()
    assert yes == []
    assert capfd.readouterr() == ("", "")


def test_code_that_comes_with_a_model_is_run_if_the_flag_is_given(folder: Path) -> None:
    """Else the test above would prove nothing."""
    trace = own_config(folder)
    with pytest.raises(GradleakError):  # it is no model, but its code did run
        load_target(str(folder), task="causal-lm", trust_remote_code=True)
    assert trace.exists()


@pytest.mark.parametrize(("load", "when"), [(as_prior, "not read"), (as_target, "read only with --allow-pickle")])
def test_pickled_weights_are_refused(folder: Path, load: Loader, when: str) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(GradleakError, match=f"no weights as safetensors; .* are {when}"):
        load(folder)


@pytest.mark.slow
def test_a_yes_on_standard_input_does_not_run_a_priors_code(folder: Path) -> None:
    trace = own_config(folder)
    command = [sys.executable, "-m", "gradleak", "attack", "the cat", "--attack", "lamp", "--preset", "fast"]
    options = ["--set", f"prior={folder}", "--set", "steps=1", "--device", "cpu", "--quiet"]
    answer = subprocess.run([*command, *options], input="y\ny\n", check=False, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == f"gradleak: prior '{folder}' comes with code of its own, which is not run\n"
    assert not trace.exists()


def test_checkpoints_are_read_in_one_place() -> None:
    root = Path(gradleak.__file__).parent
    calls = re.compile(r"\.from_pretrained\(|torch\.load\(|^\s*(?:import|from) (?:pickle|dill|joblib)\b", re.MULTILINE)
    places = {str(file.relative_to(root)) for file in root.rglob("*.py") if calls.search(file.read_text("utf-8"))}
    assert places == {"targets/reading.py"}
