from __future__ import annotations

from pathlib import Path

import pytest
from study_tools import save_texts, toml, write_study

from gradleak.errors import GradleakError
from gradleak.studies import load_study, ready_studies
from gradleak.studies.definition.reading import Place
from gradleak.studies.definition.study import parse_study

GRID = {"target": "tiny", "dataset": {"name": "cola", "take": "0:8"}, "attack": "tag"}
UTILITY = {"target": "tiny", "train": {"name": "cola", "take": "0:80"}, "test": {"name": "cola", "take": "80:100"}}


def table(kind: str, keys: dict[str, object]) -> str:
    return "\n".join([f"[[{kind}]]", *(f"{key} = {toml(value)}" for key, value in keys.items())])


def read(source: str, ready: bool = False):  # noqa: ANN201
    return parse_study(source, Place("my.toml", ready), "my")


WRONG_GRIDS: list[tuple[dict[str, object], str]] = [
    ({"bacth_size": 1}, "grid 1: unknown key 'bacth_size'; did you mean 'batch_size'?"),
    ({"batch_size": "two"}, "grid 1, batch_size: takes a whole number of 1 or more, not 'two'"),
    ({"batch_size": 0}, "grid 1, batch_size: takes a whole number of 1 or more, not 0"),
    ({"batch_size": True}, "grid 1, batch_size: takes a whole number of 1 or more, not True"),
    ({"batch_size": []}, "grid 1, batch_size: the list is empty"),
    ({"batches_per_cell": 0}, "grid 1, batches_per_cell: takes a whole number of 1 or more, not 0"),
    ({"seed": -1}, "grid 1, seed: takes a whole number of 0 or more, not -1"),
    ({"target": "tinny"}, "grid 1, target: unknown model 'tinny'; did you mean 'tiny'?"),
    (
        {"target": 3},
        "grid 1, target: takes a table with name, num_labels, task, random_weights, new_head, lora, adapter, not 3",
    ),
    ({"target": {"nmae": "tiny"}}, "grid 1, target: unknown key 'nmae'; did you mean 'name'?"),
    ({"target": {"num_labels": 2}}, "grid 1, target: lacks name"),
    ({"target": {"name": "tiny", "task": "classify"}}, "grid 1, target, task: unknown task 'classify'; did you mean"),
    ({"target": {"name": "tiny", "random_weights": 1}}, "random_weights: takes true or false, not 1"),
    ({"target": {"name": "tiny", "num_labels": 1}}, "num_labels: takes a whole number of 2 or more, not 1"),
    ({"target": {"name": "tiny", "new_head": "yes"}}, "new_head: takes true or false, not 'yes'"),
    ({"dataset": {"name": "cola", "labels": {}}}, "grid 1, dataset, labels: takes a table of labels and their classes"),
    ({"dataset": {"name": "cola", "labels": {"a": -1}}}, "dataset, labels, a: takes a whole number of 0 or more"),
    ({"dataset": {"name": "cola", "take": "8:0"}}, "grid 1, dataset, take: examples are taken as A:B"),
    ({"dataset": {"name": "cola", "tkae": "0:8"}}, "grid 1, dataset: unknown key 'tkae'; did you mean 'take'?"),
    ({"client": {"droput": True}}, "grid 1, client: unknown key 'droput'; did you mean 'dropout'?"),
    ({"client": {"dropout": 1}}, "client, dropout: takes true, false or a rate between 0 and 1, not 1"),
    (
        {"client": {"embeddings": "frosen"}},
        "client, embeddings: unknown embeddings setting 'frosen'; did you mean 'fro",
    ),
    ({"client": {"fedavg": {"steps": 4}}}, "grid 1, client, fedavg: lacks lr"),
    ({"client": {"fedavg": {"steps": 4, "lr": 0}}}, "grid 1, client, fedavg, lr: takes a number above 0, not 0"),
    (
        {"client": "dropout"},
        "grid 1, client: takes a table with dropout, embeddings, fedavg, precision, send, clients, not 'dropout'",
    ),
    ({"client": {"fedavg": {"lr": 1}}}, "grid 1, client, fedavg: lacks steps"),
    ({"client": {"fedavg": {"steps": 1, "lr": 1, "clop": 1}}}, "fedavg: unknown key 'clop'; did you mean 'clip'?"),
    ({"client": {"fedavg": {"steps": 1, "lr": 1, "clip": -1}}}, "client, fedavg: clip must be at least 0, not -1"),
    ({"client": {"fedavg": {"steps": 1, "lr": 1, "clip": "x"}}}, "client, fedavg, clip: takes a number, not 'x'"),
    ({"client": {"fedavg": {"steps": 1, "epochs": 1, "lr": 1}}}, "fedavg: steps=1 and epochs=1 exclude each other"),
    (
        {"client": {"fedavg": {"steps": 1, "lr": 1, "optimizer": "adamw2"}}},
        "fedavg, optimizer: unknown optimizer 'adamw2'; did you mean 'adamw'?",
    ),
    ({"client": {"precision": "fp8"}}, "client, precision: unknown precision 'fp8'; did you mean 'fp"),
    ({"client": {"send": "int4"}}, "client, send: unknown number format to send 'int4'; did you mean 'int8'?"),
    ({"client": {"clients": 0}}, "client, clients: takes a whole number of 1 or more, not 0"),
    ({"defense": [["nose:0.1"]]}, "grid 1, defense: unknown defense 'nose'; did you mean 'noise'?"),
    ({"defense": "noise:-1"}, "grid 1, defense: defense noise takes a standard deviation of 0 or more, not '-1'"),
    ({"defense": [3]}, "grid 1, defense: takes text in quotes, not 3"),
    ({"knowledge": ["labels", "lengths"]}, 'knowledge: takes "paper", or lists of facts in a list such as [["labels"'),
    ({"knowledge": [["label"]]}, "grid 1, knowledge: unknown knowledge 'label'; did you mean 'labels'?"),
    ({"attack": "tga"}, "grid 1, attack: unknown attack 'tga'; did you mean 'tag'?"),
    (
        {"attack": {"name": "tag", "preset": "fats"}},
        "grid 1, attack: unknown preset of tag 'fats'; did you mean 'fast'?",
    ),
    ({"preset": "papre"}, "grid 1, preset: unknown preset 'papre'; did you mean 'paper'?"),
    ({"attack": {"name": "tag", "settings": {"stpes": 3}}}, "unknown setting of tag 'stpes'; did you mean 'steps'?"),
    ({"attack": {"name": "tag", "settings": {"budget": 0}}}, "attack, settings: budget must be above 0, not 0"),
    (
        {"attack": {"name": "tag", "settings": {"budget": "1m"}}},
        "attack, settings: setting budget takes a number, not '1m'",
    ),
    ({"attack": {"name": "tag", "settings": {"steps": "x"}}}, "setting steps takes a whole number, not 'x'"),
    ({"attack": {"name": "tag", "settings": 3}}, "grid 1, attack, settings: takes a table of hyperparameters, not 3"),
    ({"attack": {"name": "tag", "settings": {"steps": [3]}}}, "attack, settings, steps: takes text, a number, true or"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_GRIDS, ids=[str(change)[:40] for change, _ in WRONG_GRIDS])
def test_a_mistake_in_a_grid_is_one_line_with_its_place(change: dict[str, object], message: str) -> None:
    with pytest.raises(GradleakError) as caught:
        read(table("grid", GRID | change))
    assert message in str(caught.value)
    assert str(caught.value).startswith("my.toml, grid 1")
    assert "\n" not in str(caught.value)


WRONG_STUDIES = [
    ("nmae = 'x'\n" + table("grid", GRID), "my.toml: unknown key 'nmae'; did you mean 'name'?"),
    ("name = 3\n" + table("grid", GRID), "my.toml, name: takes text in quotes, not 3"),
    ("name = 'a/b'\n" + table("grid", GRID), "my.toml, name: takes letters, digits"),
    ("title = 'x'", "my.toml: holds no [[grid]], [[utility]] or [[images]]"),
    ("[grid]\nseed = 0", "my.toml, grid: is written with two brackets on each side: [[…]]"),
    ("[[grid]", "my.toml: is not valid TOML:"),
    ("[[grid]]\ntarget = 'tiny'", "my.toml, grid 1: lacks dataset and attack"),
    (
        table("grid", GRID) + "\n" + table("grid", GRID | {"seeds": 1}),
        "grid 2: unknown key 'seeds'; did you mean 'seed'?",
    ),
    (table("utility", UTILITY | {"epoch": 1}), "my.toml, utility 1: unknown key 'epoch'; did you mean 'epochs'?"),
    (table("utility", UTILITY | {"lr": "fast"}), "my.toml, utility 1, lr: takes a number above 0, not 'fast'"),
]


@pytest.mark.parametrize(("source", "message"), WRONG_STUDIES, ids=[message[:40] for _, message in WRONG_STUDIES])
def test_a_mistake_in_a_study_is_one_line_with_its_place(source: str, message: str) -> None:
    with pytest.raises(GradleakError, match=r"^my\.toml") as caught:
        read(source)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_study_names_the_nearest() -> None:
    assert "quick" in ready_studies()
    with pytest.raises(GradleakError, match="unknown study 'qiuck'; did you mean 'quick'"):
        load_study("qiuck")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="cannot be read: No such file"):
        load_study(tmp_path / "none.toml")


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GradleakError, match="is not UTF-8 text"):
        load_study(tmp_path / "bytes.toml")


def test_a_study_is_named_after_its_file_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert load_study(write_study(tmp_path, table("grid", GRID), name="mine")).name == "mine"
    assert load_study(write_study(tmp_path, "name = 'other'", table("grid", GRID))).name == "other"


def test_what_a_ready_study_lacks_is_left_out_and_named() -> None:
    source = table("grid", GRID | {"attack": ["tag", "not-yet"], "defense": [[], ["later:1"], ["noise:1", "later:2"]]})
    study = read(source, ready=True)
    assert study.unavailable == ("not-yet", "later")
    assert len(study.cells()) == 1
    with pytest.raises(GradleakError, match="unknown defense 'later'"):
        read(source)


def test_a_dataset_that_is_too_short_is_one_line(tmp_path: Path) -> None:
    texts = save_texts(tmp_path, 4)
    with pytest.raises(GradleakError, match="has 4 examples: 10:20 leaves none"):
        read(table("grid", GRID | {"dataset": {"name": texts, "take": "10:20"}})).cells()


def test_another_model_must_exist() -> None:
    with pytest.raises(GradleakError, match="--target: unknown model 'tinny'; did you mean 'tiny'"):
        read(table("grid", GRID)).cells(["tinny"])


def test_any_attack_takes_a_budget() -> None:
    specs = [
        {"name": name, "preset": "fast", "settings": {"budget": 3, **more}}
        for name, more in (("tag", {"steps": 7}), ("auto", {}))
    ]
    tag, auto = read(table("grid", GRID | {"attack": specs})).grids[0].attack
    assert (tag.budget, tag.texts) == (3, {"steps": "7"})
    assert (auto.budget, auto.texts) == (None, {"budget": "3"})
