from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from study_tools import grid, save_texts, toml

from gradleak.studies import AttackCell, Study, UtilityCell
from gradleak.studies.reading import Place
from gradleak.studies.study import parse_study

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
        "target": {"name": "tiny", "num_labels": 2, "task": "classification", "random_weights": False},
        "dataset": {"name": "cola", "take": "0:2", "text_column": None, "label_column": None},
        "batch_size": 2,
        "client": {"dropout": False, "embeddings": "frozen", "fedavg": None},
        "defenses": [],
        "knowledge": ["labels", "lengths"],
        "attack": {"name": "dlg", "preset": "paper", "settings": {"steps": 3}},
        "seed": 0,
    }


def test_a_cell_travels_to_a_worker_unchanged() -> None:
    cell = attack_cells(grid("tiny", "cola", **ALL))[-1]
    assert pickle.loads(pickle.dumps(cell)).id == cell.id


def test_paper_knowledge_is_what_the_attack_assumes() -> None:
    paper, nothing = attack_cells(grid("tiny", "cola", knowledge=["paper", []], batches_per_cell=100))
    assert paper.knowledge == ("labels", "lengths")
    assert nothing.knowledge == ()


def test_the_classes_are_the_datasets_unless_the_study_says_how_many() -> None:
    target = [{"name": "tiny"}, {"name": "tiny", "num_labels": 5}, {"name": "gpt2", "task": "causal-lm"}]
    cells = attack_cells(grid("", "cola", target=target, batches_per_cell=100))
    assert [cell.target.num_labels for cell in cells] == [2, 5, None]


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
