"""Studies of image models: cells, records, resuming, and what `study show` prints."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from study_tools import rows, toml

from gradleak.cli import main
from gradleak.errors import GradleakError
from gradleak.studies import Event, ImageCell, InProcess, Processes, Store, Study, load_study, run_study
from gradleak.studies.execution.events import Planned
from gradleak.studies.report.export import as_record, to_csv
from gradleak.studies.report.summary import summarise
from gradleak.studies.report.tables import text_tables

SCORES = "SELECT batch, position, label, read, mse, psnr, ssim, loss FROM images ORDER BY cell_id, batch, position"


@pytest.fixture(autouse=True)
def _no_lpips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradleak.studies.execution.image_attack.find_lpips_weights", lambda: None)


def image_study(folder: Path, **keys: Any) -> Study:
    """Return a study of four images in cells of two."""
    settings = {
        "target": ["lenet"],
        "dataset": [{"name": "cifar10-sample", "take": "0:4"}],
        "defense": [[], ["sign"]],
        "attack": [{"name": "ig", "settings": {"steps": 2}}],
        "clients_per_cell": 2,
    }
    path = folder / "mine.toml"
    lines = [f"{key} = {toml(value)}" for key, value in (settings | keys).items()]
    path.write_text("\n".join(["[[images]]", *lines]) + "\n")
    return load_study(path)


def test_cells_hold_a_few_clients_each_and_name_their_contents(tmp_path: Path) -> None:
    cells = image_study(tmp_path).cells()
    assert [(cell.dataset.take, cell.defenses) for cell in cells if isinstance(cell, ImageCell)] == [
        ("0:2", ()),
        ("2:4", ()),
        ("0:2", ("sign",)),
        ("2:4", ("sign",)),
    ]
    assert set(cells[0].hashes or {}) == {"weights", "images"}
    assert len({cell.id for cell in cells}) == 4
    other = image_study(tmp_path, target=[{"name": "lenet", "seed": 1}]).cells()
    assert (other[0].hashes or {})["weights"] != (cells[0].hashes or {})["weights"]


def test_a_generator_that_changes_makes_another_cell(tmp_path: Path) -> None:
    file = tmp_path / "generator.safetensors"
    attack = [{"name": "gi-gip", "settings": {"generator": str(file)}}]
    hashes = []
    for content in (b"one", b"another"):
        file.write_bytes(content)
        hashes.append((image_study(tmp_path, attack=attack).cells()[0].hashes or {})["generator"])
    assert hashes[0] != hashes[1]


def test_every_image_is_recorded_and_the_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    study, path = image_study(tmp_path), tmp_path / "mine.db"

    def interrupt(event: Event) -> None:
        if not isinstance(event, Planned) and rows(path, "SELECT count(*) FROM cells") == [(1,)]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, path, executor=InProcess("cpu"), listener=interrupt)
    assert rows(path, "SELECT count(*) FROM images") == [(2,)]
    assert run_study(study, path, executor=InProcess("cpu")).fresh == 3
    assert rows(path, "SELECT count(*) FROM images") == [(8,)]
    run_study(study, tmp_path / "workers.db", executor=Processes(1, "cpu"))
    assert rows(path, SCORES) == rows(tmp_path / "workers.db", SCORES)
    with Store(path) as store:
        first = store.images(study.cells()[0].id)
    assert [(image.batch, image.label, image.read, image.lpips) for image in first] == [
        (0, 3, 3, None),
        (1, 8, 8, None),
    ]


def test_rows_merge_cells_and_stand_beside_the_papers_figures(tmp_path: Path) -> None:
    study, path = image_study(tmp_path), tmp_path / "mine.db"
    run_study(study, path, executor=InProcess("cpu"))
    overview = summarise(path)
    assert [(row.conditions["defense"], row.images, row.cells) for row in overview.images] == [
        ("none", 4, 2),
        ("sign", 4, 2),
    ]
    (mean,) = rows(path, "SELECT avg(psnr) FROM images JOIN cells ON id = cell_id WHERE config NOT LIKE '%[\"sign\"]%'")
    assert overview.images[0].scores["psnr"].mean == pytest.approx(mean[0])
    assert "lpips" not in overview.images[0].scores
    assert overview.images[0].published is None  # another study, and other settings
    (table,) = text_tables(overview)
    assert table.titles == ["defense", "n", "MSE", "PSNR dB", "SSIM", "seconds"]
    assert as_record(overview)["images"][1]["defense"] == "sign"
    lines = list(csv.DictReader(io.StringIO(to_csv(overview))))
    assert float(lines[0]["psnr"]) == pytest.approx(mean[0])
    assert len(summarise(path, ["attack"]).images) == 1


def test_the_papers_figures_are_shown_beside_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, path = image_study(tmp_path, defense=[["sign"]]), tmp_path / "mine.db"
    run_study(study, path, executor=InProcess("cpu"))
    with closing(sqlite3.connect(path)) as file, file:  # as if these were the published settings, in the ready study
        file.execute("UPDATE meta SET value = 'lti-table1' WHERE key = 'name'")
        for name, text in file.execute("SELECT id, config FROM cells").fetchall():
            config = json.loads(text)
            config["attack"]["settings"] = {}
            file.execute("UPDATE cells SET config = ? WHERE id = ?", (json.dumps(config), name))
    assert main(["study", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "paper PSNR dB" in shown
    assert "10.0" in shown
    assert "Learning to Invert (anonymous submission), table 1, on lenet" in shown


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target": ["lennet"]}, "did you mean 'lenet'"),
        ({"attack": ["igg"]}, "did you mean 'ig'"),
        ({"attack": [{"name": "ig", "settings": {"step": 2}}]}, "did you mean 'steps'"),
        ({"attack": [{"name": "ig", "settings": {"budget": 0}}]}, "budget"),
        ({"dataset": ["cifar10"]}, "needs its split"),
        ({"dataset": [{"name": "cifar10-sample", "take": "500:600"}]}, "none of them in the range"),
        ({"knowledge": [["lengths"]]}, "unknown knowledge"),
        ({"knowledge": ["labels"]}, "lists of facts"),
        ({"defense": [["sing"]]}, "did you mean 'sign'"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(GradleakError, match=message) as caught:
        image_study(tmp_path, **keys).cells()
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_the_model_fails_with_one_line(tmp_path: Path) -> None:
    study = image_study(tmp_path, target=[{"name": "lenet", "num_labels": 4}], defense=[[]])
    summary = run_study(study, tmp_path / "mine.db", executor=InProcess("cpu"))
    assert {failed.error for failed in summary.failed} == {"label 8 is not one of 4 (0 to 3); give --num-labels"}
