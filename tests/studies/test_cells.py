from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from study_tools import grid, save_bert, save_texts, toml

from conftest import small_target
from gradleak.data import Dataset
from gradleak.errors import GradleakError
from gradleak.studies import AttackCell, Study, UtilityCell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.reading import Place
from gradleak.studies.definition.study import parse_study
from gradleak.studies.execution.worker import Job, JobRunner, with_classes
from gradleak.studies.records.outcome import Failure, Outcome

ALL = {
    "target": ["tiny", {"name": "bert-base-uncased", "random_weights": True}],
    "dataset": [{"name": "cola", "take": "0:8"}, "sst2"],
    "batch_size": [1, 2],
    "client": [{"dropout": True}, {"fedavg": {"steps": 4, "lr": 5e-5}}],
    "defense": [[], ["noise:0.001"], ["clip:1", "noise:0.1"]],
    "knowledge": ["paper", []],
    "attack": ["tag", {"name": "dlg", "preset": "fast", "settings": {"steps": 100}}],
    "seed": [0, 1],
    "batches_per_cell": 100,
}


def read(source: str) -> Study:
    return parse_study(source, Place("my.toml"), "my")


def attack_cells(source: str) -> list[AttackCell]:
    cells = read(source).cells()
    assert all(isinstance(cell, AttackCell) for cell in cells)
    return cells  # type: ignore[return-value]


def test_a_grid_is_the_full_product_of_its_lists() -> None:
    cells = attack_cells(grid("tiny", "cola", **ALL))
    assert len(cells) == 2 * 2 * 2 * 2 * 3 * 2 * 2 * 2
    assert len({cell.id for cell in cells}) == len(cells)


def test_single_values_stand_for_lists_of_one() -> None:
    single = {"target": "tiny", "dataset": "cola", "batch_size": 1, "client": {"dropout": True}, "defense": "noise:0.1"}
    listed = {key: [value] for key, value in single.items()} | {"defense": [["noise:0.1"]]}
    single |= {"knowledge": "paper", "attack": "tag", "seed": 0}
    listed |= {"knowledge": ["paper"], "attack": ["tag"], "seed": [0]}
    assert read(grid("", "", **single)).cells() == read(grid("", "", **listed)).cells()


def test_sentences_are_cut_into_cells_of_some_batches(tmp_path: Path) -> None:
    texts = save_texts(tmp_path, 11)
    source = grid("tiny", texts, dataset={"name": texts, "take": "1:100"}, batch_size=[1, 2], batches_per_cell=3)
    assert [(cell.batch_size, cell.dataset.take) for cell in attack_cells(source)] == [
        (1, "1:4"),
        (1, "4:7"),
        (1, "7:10"),
        (1, "10:11"),
        (2, "1:7"),
        (2, "7:11"),
    ]


def test_the_same_cell_of_two_grids_is_one_cell() -> None:
    one = grid("tiny", "cola", batches_per_cell=100)
    assert len(read(one + one).cells()) == len(read(one).cells()) == 1


def test_ids_do_not_depend_on_how_a_study_is_written() -> None:
    plain = attack_cells(grid("tiny", "cola", dataset={"name": "cola", "take": "0:8"}, batches_per_cell=8))
    written = grid(
        "tiny",
        "cola",
        seed=0,
        target={"name": "tiny", "num_labels": 2, "task": "classification"},
        dataset={"take": ":8", "name": "cola"},
        batches_per_cell=4,
        knowledge=[["lengths", "labels"]],
        client={"embeddings": "frozen"},
        defense=[],
    )
    assert [cell.id for cell in attack_cells(written)] == [cell.id for cell in plain]
    noisy = {attack_cells(grid("tiny", "cola", defense=text))[0].id for text in ("noise:0.001", "noise: 1e-3")}
    assert len(noisy) == 1


def test_settings_stay_what_they_are() -> None:
    """Records of earlier versions must be found again: if this fails, the change makes every user start over."""
    (cell,) = attack_cells(grid("tiny", "cola", dataset={"name": "cola", "take": "0:2"}))
    assert cell.setting == "caae9dca2cd9391a7203cdabfdb82ef7be1ec17213f0da5fbe3bc258c57c3e29"
    assert replace(cell, hashes=None).id == cell.setting != cell.id
    assert {key: value for key, value in cell.config.items() if key != "hashes"} == {
        "kind": "attack",
        "target": {
            "name": "tiny",
            "num_labels": 2,
            "task": "classification",
            "random_weights": False,
            "new_head": None,
        },
        "dataset": {"name": "cola", "take": "0:2", "text_column": None, "label_column": None, "labels": None},
        "batch_size": 2,
        "client": {"dropout": False, "embeddings": "frozen", "fedavg": None},
        "defenses": [],
        "knowledge": ["labels", "lengths"],
        "attack": {"name": "dlg", "preset": "paper", "settings": {"steps": 3}},
        "seed": 0,
    }


def test_local_training_stays_what_it_is() -> None:
    fedavg = {"steps": 4, "lr": 5e-5, "batch": 1}
    (cell,) = attack_cells(grid("tiny", "cola", dataset={"name": "cola", "take": "0:2"}, client={"fedavg": fedavg}))
    assert cell.setting == "5cfa772e3901c6cd0eb1e3fb1c7c13f211ca713b06bdc8c9a7d7ee87ea3376e2"
    assert cell.config["client"]["fedavg"] == fedavg


def test_a_client_of_practice_is_a_cell_of_its_own_and_runs() -> None:
    fedavg = {"epochs": 1, "lr": 5e-5, "batch": 1, "optimizer": "adamw", "clip": 1}
    practice = {"fedavg": fedavg, "precision": "bf16", "send": "int8", "clients": 2}
    clients = [{}, *({name: value} for name, value in practice.items()), practice]
    cells = attack_cells(
        grid("tiny", "cola", dataset={"name": "cola", "take": "0:12"}, client=clients, batches_per_cell=1)
    )
    by_client: dict[str, list[AttackCell]] = {}
    for cell in cells:
        by_client.setdefault(str(cell.client), []).append(cell)
    assert [len(found) for found in by_client.values()] == [6, 6, 6, 6, 3, 3], "a sum over two clients is one batch"
    last = cells[-1]
    assert last.config["client"] == {
        "dropout": False,
        "embeddings": "frozen",
        "fedavg": {"steps": None, "lr": 5e-5, "batch": 1, "epochs": 1, "optimizer": "adamw", "clip": 1.0},
        "precision": "bf16",
        "send": "int8",
        "clients": 2,
    }
    done = JobRunner("cpu").run(Job.of(last, Library()))
    assert isinstance(done, Outcome)
    assert len(done.sentences) == 4


def test_texts_that_do_not_fill_sums_over_clients_are_refused_before_anything_runs() -> None:
    with pytest.raises(GradleakError, match="sums over 3 clients with batches of 2 take 6 texts each, or a multiple"):
        attack_cells(grid("tiny", "cola", dataset={"name": "cola", "take": "0:8"}, client={"clients": 3}))


def test_a_cell_travels_to_a_worker_unchanged() -> None:
    cell = attack_cells(grid("tiny", "cola", **ALL))[-1]
    assert pickle.loads(pickle.dumps(cell)).id == cell.id


def test_paper_knowledge_is_what_the_attack_assumes() -> None:
    paper, nothing = attack_cells(grid("tiny", "cola", knowledge=["paper", []], batches_per_cell=100))
    assert paper.knowledge == ("labels", "lengths")
    assert nothing.knowledge == ()


def test_a_preset_is_the_attacks_own_else_the_grids_else_the_default() -> None:
    attacks = ["tag", "lamp", {"name": "lamp", "preset": "fast"}, "mosaic"]
    one = {"attack": attacks, "batches_per_cell": 100}

    def presets(**changes: object) -> list[str | None]:
        return [cell.attack.preset for cell in attack_cells(grid("tiny", "cola", **one, **changes))]

    assert presets() == ["paper", "best", "fast", "best"]
    assert presets(preset="paper") == ["paper", "paper", "fast", "best"]
    assert presets(preset="large") == ["large", "large", "fast", "best"], "an attack that has none of that name"


def test_the_classes_are_the_datasets_unless_the_study_says_how_many() -> None:
    target = [{"name": "tiny"}, {"name": "tiny", "num_labels": 5}, {"name": "gpt2", "task": "causal-lm"}]
    cells = attack_cells(grid("", "cola", target=target, batches_per_cell=100))
    assert [cell.target.num_labels for cell in cells] == [2, 5, None]


def test_a_trained_head_keeps_its_classes_unless_the_study_wants_a_new_one(tmp_path: Path) -> None:
    model = save_bert(tmp_path / "model")  # two classes
    data = {"name": "banking77", "take": "0:2"}
    targets = [{"name": model}, {"name": model, "new_head": True}]
    kept, new = attack_cells(grid(model, "cola", target=targets, dataset=data))
    assert (kept.target.num_labels, new.target.num_labels) == (2, 77)
    refused, done = (JobRunner("cpu").run(Job.of(cell, Library())) for cell in (kept, new))
    assert isinstance(refused, Failure)
    assert "banking77 has 77 labels, and the model 2 classes; give --new-head" in refused.error
    assert isinstance(done, Outcome)


def test_a_study_maps_labels_as_it_says(tmp_path: Path) -> None:
    model = save_bert(tmp_path / "model")
    file = tmp_path / "stars.csv"
    file.write_text("label,text\n1,the cat\n2,a dog\n3,a mat\n", encoding="utf-8")
    data = {"name": str(file), "labels": {"1": 0, "2": 0, "3": 1}}
    (cell,) = attack_cells(grid(model, "cola", dataset=data, batch_size=3))
    assert cell.dataset.labels == {"1": 0, "2": 0, "3": 1}
    done = JobRunner("cpu").run(Job.of(cell, Library()))
    assert isinstance(done, Outcome)
    assert sorted(sentence.label or 0 for sentence in done.sentences) == [0, 0, 1]


def test_a_label_is_the_same_class_in_training_and_in_testing() -> None:
    train = Dataset("train", ("a", "b", "c"), (1, 2, 3), ("0", "1", "2", "3"), "nowhere")
    test = Dataset("test", ("a", "b"), (1, 3), ("0", "1", "2", "3"), "nowhere")
    (cell,) = read('[[utility]]\ntarget = "tiny"\ntrain = "cola"\ntest = "cola"\n').cells()
    assert isinstance(cell, UtilityCell)
    trained, tested = with_classes(small_target("bert", num_labels=3), cell, train, test)
    assert (trained.labels, tested.labels) == ((0, 1, 2), (0, 2))


def test_other_models_take_the_place_of_the_studys_own() -> None:
    study = read(grid("tiny", "cola", target=[{"name": "tiny", "num_labels": 3}, "gpt2"], batches_per_cell=100))
    cells = study.cells(["bert-base-uncased", "roberta-base"])
    assert [(cell.target.name, cell.target.num_labels) for cell in cells] == [
        ("bert-base-uncased", 3),
        ("roberta-base", 3),
    ]


def test_utility_is_one_cell_per_combination() -> None:
    keys = {
        "target": "tiny",
        "train": {"name": "cola", "take": "0:80"},
        "test": {"name": "cola", "take": "80:"},
        "defense": [[], ["noise:0.001"]],
        "seed": [0, 1, 2],
    }
    cells = read("\n".join(["[[utility]]", *(f"{key} = {toml(value)}" for key, value in keys.items())])).cells()
    assert len(cells) == 6
    first = cells[0]
    assert isinstance(first, UtilityCell)
    assert (first.train.take, first.test.take) == ("0:80", "80:100")
    assert (first.epochs, first.batch_size, first.lr) == (2, 32, 5e-5)
