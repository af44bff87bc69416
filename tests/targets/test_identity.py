from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradleak.targets.identity import folder_hash, weights_hash


def model_folder(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in ({"config.json": "{}", "model.safetensors": "weights", "vocab.txt": "a b"} | files).items():
        (folder / name).write_text(text)
    return str(folder)


def test_equal_files_give_equal_hashes_wherever_they_are(tmp_path: Path) -> None:
    one, two = model_folder(tmp_path / "one"), model_folder(tmp_path / "two")
    assert weights_hash(one) == weights_hash(two)
    os.utime(Path(two) / "config.json", (1, 1))
    assert weights_hash(one) == weights_hash(two)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "tokenizer.json"])
def test_other_weights_configuration_or_tokenizer_give_another_hash(tmp_path: Path, name: str) -> None:
    before = weights_hash(model_folder(tmp_path / "model"))
    (tmp_path / "model" / name).write_text("something else")
    assert weights_hash(str(tmp_path / "model")) != before


def test_what_is_no_part_of_the_model_does_not_count(tmp_path: Path) -> None:
    before = weights_hash(model_folder(tmp_path / "model"))
    (tmp_path / "model" / "README.md").write_text("notes")
    (tmp_path / "model" / "checkpoint-1").mkdir()
    (tmp_path / "model" / "checkpoint-1" / "model.safetensors").write_text("other")
    assert weights_hash(str(tmp_path / "model")) == before
    assert folder_hash(tmp_path / "model", deep=True) != before


def test_weights_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    name = model_folder(tmp_path / "model")
    before = weights_hash(name, random_weights=True)
    (tmp_path / "model" / "model.safetensors").write_text("other")
    assert weights_hash(name, random_weights=True) == before != weights_hash(name)


def test_architectures_with_weights_from_the_seed_are_told_apart() -> None:
    assert len({weights_hash("textcnn"), weights_hash("lstm"), weights_hash("gpt2", random_weights=True)}) == 3


def test_a_hub_id_is_known_by_the_revision_that_would_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    revision = "one"

    class Hub:
        def model_info(self, name: str, **_: Any) -> Any:
            assert name == "google-bert/bert-base-uncased"
            return SimpleNamespace(sha=revision)

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    first = weights_hash("bert-base-uncased")
    revision = "two"
    assert first == "google-bert/bert-base-uncased@one"
    assert weights_hash("bert-base-uncased") == "google-bert/bert-base-uncased@two"


def test_without_the_hub_the_cached_revision_counts_and_else_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "/cache/snapshots/abc/config.json")
    assert weights_hash("some/model") == "some/model@abc"
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    assert weights_hash("some/model") == "some/model"


def test_a_name_that_stands_for_nothing_stands_for_itself(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert weights_hash(str(tmp_path / "empty")) == str(tmp_path / "empty")
