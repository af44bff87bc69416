"""The script that builds the shipped samples."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "training" / "build_samples.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_samples", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write(folder / "lamp_selection" / "cola.tsv", [("1", f"sentence {n}") for n in range(150)])
    for name in ("sst2", "rotten_tomatoes"):
        chosen = [("0", f"chosen number {n} here") for n in range(64)]
        longer = [("1", f"more of number {n}") for n in range(60)]
        write(folder / "lamp_selection" / f"{name}.tsv", chosen)
        write(folder / name / "train.tsv", chosen + [("1", f"short {n}") for n in range(60)] + longer + longer)
    intents = [(f"intent{n % 77}", f"question {n}") for n in range(77 * 3)]
    write(folder / "banking77" / "test.tsv", intents + intents)
    return folder


def test_each_sample_has_100_different_examples(script: ModuleType, data: Path) -> None:
    samples = script.build(data)
    assert sorted(samples) == ["banking77", "cola", "rotten_tomatoes", "sst2"]
    assert all(len({text for _, text in examples}) == 100 for examples in samples.values())


def test_selections_of_the_papers_come_first_and_longer_sentences_follow(script: ModuleType, data: Path) -> None:
    samples = script.build(data)
    assert samples["cola"][99] == ("1", "sentence 99")
    assert [text for _, text in samples["sst2"][:64]] == [f"chosen number {n} here" for n in range(64)]
    assert all(text.startswith("more of") for _, text in samples["sst2"][64:])


def test_every_intent_is_there(script: ModuleType, data: Path) -> None:
    assert len({label for label, _ in script.build(data)["banking77"]}) == 77


def test_the_same_data_gives_the_same_files(script: ModuleType, data: Path, tmp_path: Path) -> None:
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        script.main(["--data", str(data), "--out", str(tmp_path / run)])
    for name in ("banking77", "cola", "rotten_tomatoes", "sst2"):
        first, second = ((tmp_path / run / f"{name}.tsv").read_bytes() for run in ("one", "two"))
        assert first == second
        assert first.startswith(b"label\ttext\n")
