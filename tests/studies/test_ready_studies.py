from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

import pytest

from gradleak.attacks import ATTACKS
from gradleak.studies import AttackCell, Cell, ImageCell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.study import load_study, ready_studies
from gradleak.studies.report.conditions import CONDITIONS, OURS
from gradleak.studies.report.published import FIGURES, IMAGE_FIGURES, Published, find_published, published_rows
from gradleak.vision.attacks import IMAGE_ATTACKS

OF_THE_PAPER = {"grab-table4": "large"}
"""Studies whose paper has other settings for its model than the preset `paper` has."""

PAPERS = {
    "lamp": ("table1", "table2", "table4", "table5", "table8", "fedavg"),
    "grab": (
        *("figure2", "figure3", "figure4", "figure5"),
        *("table3", "table4", "table5", "table6", "table7", "table9", "table10"),
    ),
    "fet": ("table1", "table2", "table3", "table4"),
    "edr": ("table1",),
    "lti": ("table1", "table2"),
}
BEYOND = {("grab-table10", 128)}  # batch sizes that the paper has and the shipped samples do not fill
LIBRARY = Library()  # every dataset is read once
NAMES = [f"{paper}-{table}" for paper, tables in PAPERS.items() for table in tables]
OF_NO_PAPER = ["field", "quick"]


def source(name: str) -> dict[str, Any]:
    return tomllib.loads((resources.files("gradleak.studies") / "ready" / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def cells_of(name: str) -> list[Cell]:
    return load_study(name).cells(library=LIBRARY)


def test_all_ready_studies_are_there() -> None:
    assert ready_studies() == sorted([*NAMES, *OF_NO_PAPER])


@pytest.mark.parametrize("name", [*NAMES, *OF_NO_PAPER])
def test_ready_study_loads_and_leaves_out_only_attacks_that_are_not_there(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert study.title
    assert study.paper == (None if name in OF_NO_PAPER else name.partition("-")[0])
    assert not set(study.unavailable) & set(ATTACKS)
    assert all(cell.target.name == ("lenet" if cell.kind == "images" else "tiny") for cell in cells_of(name))


def test_quick_study_needs_nothing_that_is_not_there() -> None:
    study = load_study("quick")
    assert not study.unavailable
    cells = cells_of("quick")
    assert len(cells) == 30
    read = {cell.attack.name: cell.knowledge for cell in cells if isinstance(cell, AttackCell)}
    assert read["sieve"] == ()  # told nothing


def test_field_study_has_every_kind_of_client_and_ends_in_minutes() -> None:
    study = load_study("field")
    assert not study.unavailable
    cells = [cell for cell in cells_of("field") if isinstance(cell, AttackCell)]
    clients = [cell.client for cell in cells]
    assert {client.send for client in clients} == {"fp32", "fp16", "bf16", "int8"}
    assert {client.precision for client in clients} == {"fp32", "bf16"}
    assert {client.clients for client in clients} == {1, 4}
    local = {(client.fedavg.optimizer, client.fedavg.steps) for client in clients if client.fedavg}
    assert local == {("sgd", 4), ("adamw", 1), ("adamw", 4)}
    assert any(cell.defenses for cell in cells)
    assert {cell.batch_size for cell in cells if cell.client.clients == 1} == {1, 4}
    assert all(cell.attack.name == "auto" and cell.knowledge == () for cell in cells)
    most = sum(_updates(cell) * cell.attack.settings["budget"] for cell in cells)
    assert most <= 2 * 5 * 60  # seconds of two cores


@pytest.mark.parametrize("name", [*NAMES, *OF_NO_PAPER])
def test_the_strongest_attack_stands_beside_the_papers_wherever_they_attack(name: str) -> None:
    cells = [cell for cell in cells_of(name) if isinstance(cell, AttackCell)]
    ours = [cell for cell in cells if cell.attack.name in OURS]
    assert all(cell.knowledge == () for cell in ours)
    settings = {(*_scenario(cell), cell.seed) for cell in cells}
    assert settings == {(*_scenario(cell), cell.seed) for cell in ours}


def _updates(cell: AttackCell) -> int:
    first, last = map(int, str(cell.dataset.take).split(":"))
    return (last - first) // (cell.batch_size * cell.client.clients)


def _scenario(cell: AttackCell) -> tuple[Any, ...]:
    return cell.dataset.name, cell.batch_size, str(cell.client), cell.defenses


def test_what_is_marked_as_ours_is_all_that_has_no_paper() -> None:
    own = {name for name, kind in ATTACKS.items() if kind.paper.startswith("gradleak")}
    assert own == set(OURS)


# --- published figures -----------------------------------------------------------------------------------------------


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the conditions of all rows that a ready study will have when all of its attacks are there."""
    rows = []
    for grid in source(name).get("grid", ()):
        for dataset, size, client, defense, knowledge, attack in product(
            grid["dataset"], grid["batch_size"], grid["client"], grid["defense"], grid["knowledge"], grid["attack"]
        ):
            spec = {"name": attack} if isinstance(attack, str) else attack
            usual = grid["preset"] if grid.get("preset") in ATTACKS[spec["name"]].presets else None
            fedavg = client.get("fedavg")
            rows.append(
                {
                    "attack": spec["name"],
                    "preset": spec.get("preset") or usual or ATTACKS[spec["name"]].default_preset(),
                    "settings": spec.get("settings", {}),
                    "target": "tiny",
                    "dataset": dataset["name"],
                    "batch_size": size,
                    "dropout": client["dropout"],
                    "embeddings": client["embeddings"],
                    "fedavg": ",".join(f"{k}={v:g}" for k, v in fedavg.items()) if fedavg else "none",
                    "defense": " + ".join(defense) or "none",
                    "knowledge": knowledge if knowledge == "paper" else sorted(knowledge),
                }
            )
    for grid in source(name).get("images", ()):
        for dataset, size, defense, attack in product(
            grid["dataset"], grid["batch_size"], grid["defense"], grid["attack"]
        ):
            conditions = {"attack": attack["name"], "preset": attack["preset"], "settings": {}, "target": "lenet"}
            conditions |= {"dataset": dataset["name"], "batch_size": size, "defense": " + ".join(defense) or "none"}
            rows.append(conditions)
    return rows


def trainings_of(name: str) -> list[dict[str, Any]]:
    """Return the conditions of all trainings of a ready study."""
    defenses = [defense for grid in source(name).get("utility", ()) for defense in grid["defense"]]
    return [{"target": "tiny", "defense": " + ".join(defense) or "none"} for defense in defenses]


def test_every_paper_study_has_published_figures() -> None:
    content = (resources.files("gradleak.studies.report") / "published.json").read_text(encoding="utf-8")
    assert sorted(json.loads(content)) == sorted(NAMES)
    assert all(published_rows(name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_row_is_sound_and_belongs_to_a_row_of_the_study(name: str) -> None:
    wanted, trainings = rows_of(name), trainings_of(name)
    seen = set()
    for row in published_rows(name):
        assert set(row.conditions) <= set(CONDITIONS)
        assert row.target
        assert set(row.figures) <= {*FIGURES, *IMAGE_FIGURES}
        assert -1 <= row.figures.get("mcc", 0) <= 1
        assert row.figures.get("epsilon", 1) > 0
        if set(row.figures) == set(IMAGE_FIGURES):
            assert sum(row.fits(conditions) for conditions in wanted) == 1, row
        elif "attack" in row.conditions:
            assert {"rouge1", "rouge2", "rougeL"} <= set(row.figures)
            beyond = ("mcc", "seconds", "epsilon")
            assert all(0 <= value <= 100 for key, value in row.figures.items() if key not in beyond)
            assert row.figures["rouge2"] <= row.figures["rouge1"]
            fitting = sum(row.fits(conditions) for conditions in wanted)
            assert fitting == ((name, row.conditions["batch_size"]) not in BEYOND), row
        else:
            assert any(row.fits(conditions) for conditions in (*wanted, *trainings)), row
        key = str((row.target, row.conditions))
        assert key not in seen
        seen.add(key)


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_stand_beside_the_papers_preset_alone(name: str) -> None:
    attacks = [row for row in published_rows(name) if "attack" in row.conditions]  # the others are of trainings
    beside = [row for row in rows_of(name) if any(published.fits(row) for published in attacks)]
    assert bool(beside) is bool(attacks)
    for row in beside:
        assert row["preset"] == OF_THE_PAPER.get(name, "paper")
        for preset in ("best", "fast", "thorough", None):
            assert not any(published.fits(row | {"preset": preset}) for published in attacks)


@pytest.mark.parametrize("name", NAMES)
def test_what_repeats_a_papers_table_runs_the_papers_attack(name: str) -> None:
    attacking = [cell for cell in cells_of(name) if isinstance(cell, AttackCell | ImageCell)]
    named = {(cell.attack.name, cell.attack.preset) for cell in attacking}
    papers = {row.conditions["attack"] for row in published_rows(name) if "attack" in row.conditions}
    assert {(attack, OF_THE_PAPER.get(name, "paper")) for attack in papers & {*ATTACKS, *IMAGE_ATTACKS}} <= named


def figures(study: str, target: str, **conditions: Any) -> Published:
    given = {"settings": {}} | conditions
    found = [
        row
        for row in published_rows(study)
        if row.target == target and all(row.conditions.get(name) == value for name, value in given.items())
    ]
    assert len(found) == 1
    return found[0]


BASE, TINY, LARGE = "bert-base-uncased", "tinybert-6l", "bert-large-uncased"


@pytest.mark.parametrize(
    ("study", "target", "conditions", "expected"),
    [  # typed by hand from the papers
        ("lamp-table1", LARGE, {"attack": "lamp-l2l1", "dataset": "rotten_tomatoes"}, [77.6, 16.6, 45.8]),
        ("lamp-table1", TINY, {"attack": "lamp", "dataset": "cola"}, [93.9, 59.3, 80.2]),
        ("lamp-table2", BASE, {"attack": "tag", "dataset": "sst2", "batch_size": 4}, [61.0, 12.3, 48.4]),
        (
            "lamp-table4",
            BASE,
            {"attack": "lamp", "dataset": "sst2", "settings": {"alpha_lm": 0.0}},
            [82.6, 37.0, 68.4],
        ),
        ("lamp-table5", BASE, {"attack": "lamp", "defense": "noise:0.005"}, [43.3, 9.45, 39.7]),
        ("lamp-table8", BASE, {"attack": "lamp", "defense": "mask:0.95"}, [39.0, 5.8, 37.4]),
        ("lamp-fedavg", BASE, {"attack": "lamp-l2l1", "fedavg": "steps=4,lr=5e-05,batch=1"}, [66.5, 21.0, 55.1]),
        ("grab-figure2", BASE, {"attack": "grab", "batch_size": 16}, [45.5, 18.1, 38.1]),
        ("grab-figure3", BASE, {"attack": "tag", "batch_size": 1}, [58.4, 6.4, 33.4]),
        ("grab-table3", LARGE, {"attack": "grab"}, [70.2, 32.2, 55.0]),
        ("grab-table3", "roberta-base", {"attack": "grab", "settings": {"learn_dropout": False}}, [43.6, 22.5, 38.7]),
        (
            "grab-table5",
            BASE,
            {"attack": "grab", "batch_size": 8, "knowledge": ["batch-size", "dropout", "longest"]},
            [71.0, 43.6, 58.8],
        ),
        ("grab-table7", BASE, {"attack": "lamp", "defense": "mask:0.75"}, [27.9, 8.8, 21.3]),
        ("grab-table4", LARGE, {"attack": "lamp-l2l1", "preset": "large"}, [70.9, 25.1, 52.9]),
        ("grab-table4", "roberta-large", {"attack": "grab", "preset": "large"}, [74.1, 33.2, 59.2]),
        ("grab-table9", BASE, {"attack": "grab", "batch_size": 8}, [56.1, 23.8, 45.2]),
        ("grab-table10", BASE, {"attack": "grab", "batch_size": 64}, [45.2, 19.3, 38.9]),
        ("grab-table10", BASE, {"attack": "grab", "batch_size": 128}, [39.7, 13.6, 35.3]),
        ("grab-figure4", BASE, {"attack": "dlg", "dropout": 0.1}, [29.2, 2.7, 20.0]),
        ("fet-table1", BASE, {"attack": "fet", "dataset": "rotten_tomatoes"}, [75.6, 19.3, 45.5]),
        ("fet-table2", "lstm", {"attack": "fet", "dataset": "sst2"}, [98.9, 97.7, 98.5]),
        ("fet-table3", TINY, {"attack": "lamp", "batch_size": 2}, [84.7, 40.2, 70.3]),
        ("fet-table4", TINY, {"attack": "fet", "settings": {"generations": 0}}, [98.5, 90.6, 94.7]),
        ("edr-table1", BASE, {"attack": "edr", "dataset": "sst2", "batch_size": 2}, [89.92, 65.99, 78.66]),
        ("lti-table2", "transformer-3-layers", {"attack": "lti-p", "defense": "sign"}, [84.66, 76.46, 84.64]),
    ],
)
def test_published_figures_are_those_of_the_paper(
    study: str, target: str, conditions: dict[str, Any], expected: list[float]
) -> None:
    found = figures(study, target, **conditions)
    assert [found.figures[name] for name in ("rouge1", "rouge2", "rougeL")] == expected


def test_other_published_figures_are_those_of_the_paper() -> None:
    assert figures("lamp-table5", BASE, attack="dlg", defense="noise:0.01").figures["mcc"] == 0.364
    assert figures("grab-table7", BASE, attack="dlg", defense="mask:0.9").figures["mcc"] == 0.67
    for study in ("grab-table6", "grab-figure5"):
        noisy = find_published(study, {"target": BASE, "defense": "dpsgd:1,0.02"})
        assert noisy is not None
        assert noisy.figures == {"mcc": 0.45, "epsilon": 2.55e7}
    assert figures("fet-table1", TINY, attack="lamp", dataset="sst2").figures["exact"] == 32.0
    assert figures("fet-table4", TINY, attack="fet").figures["seconds"] == 43.27
    lti = figures("lti-table2", "transformer-3-layers", attack="tag", defense="prune-global:0.99")
    assert lti.figures["token_accuracy"] == 34.34


def test_published_figures_of_images_are_those_of_the_paper() -> None:
    found = figures("lti-table1", "lenet", attack="gi-gip", defense="prune-global:0.99")
    assert found.figures == {"mse": 0.043, "psnr": 14.356, "lpips": 0.474}
    assert len(published_rows("lti-table1")) == 12


def test_own_model_comes_before_the_papers_main_one() -> None:
    conditions = rows_of("lamp-table1")[0]
    for target, expected in ((LARGE, LARGE), ("tiny", BASE), (None, BASE)):
        found = find_published("lamp-table1", conditions | {"target": target})
        assert found is not None
        assert found.target == expected
    assert find_published("mine", conditions) is None
    assert find_published(None, conditions) is None
