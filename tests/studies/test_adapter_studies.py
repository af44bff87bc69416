"""Studies of adapters: the table of a fresh one, the folder of another, and ids that tell them apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from study_tools import grid, save_bert, save_texts, write_study

from gradleak.errors import GradleakError
from gradleak.studies import load_study
from gradleak.studies.definition.library import Library
from gradleak.studies.execution.worker import Job, JobRunner
from gradleak.studies.records.outcome import Outcome
from gradleak.targets import Lora
from peft_twin import saved_adapter


def one_cell(folder: Path, target: dict[str, object]) -> object:
    path = write_study(folder, grid("", save_texts(folder, 2), target=target, client={"dropout": 0.2}))
    return load_study(path).cells()[0]


def test_a_fresh_adapter_is_a_table_or_the_text_of_the_command_line(tmp_path: Path) -> None:
    model = save_bert(tmp_path / "bert")
    table = one_cell(tmp_path, {"name": model, "lora": {"r": 2, "targets": "query", "dropout": 0.1}})
    text = one_cell(tmp_path, {"name": model, "lora": "r=2,targets=query,dropout=0.1"})
    assert table == text
    assert table.target.lora == Lora(r=2, targets="query", dropout=0.1)
    plain = one_cell(tmp_path, {"name": model})
    assert len({cell.id for cell in (table, text, plain)}) == 2
    assert table.config["target"]["lora"] == {"r": 2, "alpha": 16.0, "targets": "query", "dropout": 0.1, "rounds": 1}


@pytest.mark.parametrize("kind", ["fresh", "folder"])
def test_cells_with_adapters_run(kind: str, tmp_path: Path) -> None:
    adapter = {"lora": {"r": 2, "dropout": 0.1, "rounds": 1}} if kind == "fresh" else {}
    adapter |= {"adapter": saved_adapter(tmp_path / "adapter")} if kind == "folder" else {}
    cell = one_cell(tmp_path, {"name": save_bert(tmp_path / "bert"), **adapter})
    outcome = JobRunner("cpu").run(Job.of(cell, Library()).anywhere())
    assert isinstance(outcome, Outcome), outcome


def test_other_weights_in_an_adapters_folder_make_another_cell(tmp_path: Path) -> None:
    target = {"name": save_bert(tmp_path / "bert"), "adapter": saved_adapter(tmp_path / "adapter")}
    first = one_cell(tmp_path, target)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    assert one_cell(tmp_path, target).id != first.id


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"lora": {"r": 0}}, "grid 1, target, lora, r: takes a whole number of 1 or more, not 0"),
        ({"lora": {"rank": 2}}, "grid 1, target, lora: unknown key 'rank'"),
        ({"lora": {"targets": 3}}, "grid 1, target, lora, targets: takes text in quotes, not 3"),
        ({"lora": "r=zero"}, "grid 1, target, lora: lora r takes a whole number, not 'zero'"),
        ({"adapter": "nowhere"}, "grid 1, target, adapter: nowhere is no directory"),
    ],
)
def test_mistakes_name_their_place(target: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=message):
        one_cell(tmp_path, {"name": "tiny", **target})


def test_a_fresh_adapter_and_a_folder_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="lora and adapter exclude each other"):
        one_cell(tmp_path, {"name": "tiny", "lora": "r=2", "adapter": saved_adapter(tmp_path / "adapter")})
