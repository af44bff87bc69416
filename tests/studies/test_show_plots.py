from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from test_show import attack_config, run, small_study, utility_config, write_study

from gradleak.errors import GradleakError
from gradleak.studies.plots import draw, find_panels, spread
from gradleak.studies.show import summarise

STEPS = {"steps": 300}


def rich_study(path: Path, *attacks: str) -> Path:
    """A study that has something for every panel."""
    cells = []
    for strength, attack in enumerate(attacks or ("dlg", "tag"), start=1):
        for number, noise in enumerate(("", "noise:0.0001", "noise:0.001", "noise:0.01", "prune:0.9", "sign")):
            config = attack_config(attack, STEPS, defenses=[noise] if noise else [])
            cells.append((config, [30.0 * strength - 4 * number, 25.0 * strength]))
        cells.append((attack_config(attack, STEPS, batch_size=2), [20.0 * strength, 24.0]))
        cells.append((attack_config(attack, STEPS, dropout=True), [15.0 * strength, 12.0]))
    utilities = [(utility_config(), 0.5), (utility_config("noise:0.001"), 0.4), (utility_config("sign"), 0.1)]
    return write_study(path, cells, utilities)


def test_every_kind_gets_a_panel_where_there_are_points(tmp_path: Path) -> None:
    panels = find_panels(summarise(rich_study(tmp_path / "a.db")))
    assert [panel.title for panel in panels] == [
        "Noise",
        "Pruning",
        "Batch size",
        "Dropout",
        "Leakage and usefulness",
    ]
    assert panels[0].ticks == ("none", "0.0001", "0.001", "0.01")
    assert list(panels[0].lines) == ["dlg", "tag"]
    assert [point.place for point in panels[0].lines["tag"]] == [0, 1, 2, 3]
    assert panels[0].detail == "batch size 1, no dropout"
    assert panels[3].ticks == ("off", "on")


def test_usefulness_is_held_against_the_strongest_attack(tmp_path: Path) -> None:
    (panel,) = find_panels(summarise(rich_study(tmp_path / "a.db")), ["leakage-utility"])
    assert list(panel.lines) == ["tag"]
    assert panel.detail.endswith("strongest attack: tag")
    assert {(point.place, point.word) for point in panel.lines["tag"]} == {
        (0.5, "none"),
        (0.4, "noise:0.001"),
        (0.1, "sign"),
    }


def test_each_dataset_has_its_panel(tmp_path: Path) -> None:
    cells = [
        (attack_config(dataset={"name": name}, batch_size=size), [50.0])
        for name in ("cola", "sst2")
        for size in (1, 2, 4)
    ]
    panels = find_panels(summarise(write_study(tmp_path / "a.db", cells)))
    assert [(panel.title, panel.detail) for panel in panels] == [("Batch size", "cola"), ("Batch size", "sst2")]


def test_variants_of_one_attack_are_lines_of_their_own(tmp_path: Path) -> None:
    settings: list[dict[str, float]] = [{}, {"alpha": 0.0}, {"alpha": 0.1}]
    cells = [(attack_config("tag", some, batch_size=size), [50.0]) for some in settings for size in (1, 2)]
    (panel,) = find_panels(summarise(write_study(tmp_path / "a.db", cells)))
    assert sorted(panel.lines) == ["tag", "tag\nalpha=0.0", "tag\nalpha=0.1"]


def test_figure_is_written_in_each_format(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    overview = summarise(rich_study(tmp_path / "a.db", "dlg", "tag", "lamp"))
    for name, start in {"a.png": b"\x89PNG", "a.pdf": b"%PDF", "a.svg": b"<?xml"}.items():
        assert len(draw(overview, tmp_path / name)) == 5
        assert (tmp_path / name).read_bytes().startswith(start)


def test_command_draws_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    study, picture = rich_study(tmp_path / "a.db"), tmp_path / "a.png"
    text = run(capsys, study, plot=picture, kind="leakage-noise,leakage-dropout", by="attack")
    assert "drawn: noise, dropout" in text
    assert picture.stat().st_size > 10_000


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    one = write_study(tmp_path / "one.db", [(attack_config(), [50.0])])
    with pytest.raises(GradleakError, match="nothing to draw"):
        draw(summarise(one), tmp_path / "a.png")
    with pytest.raises(GradleakError, match="did you mean 'leakage-noise'"):
        draw(summarise(one), tmp_path / "a.png", ["leakage-nose"])


def test_missing_matplotlib_and_unknown_ending_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overview = summarise(small_study(tmp_path / "a.db"))
    if pytest.importorskip("matplotlib"):
        with pytest.raises(GradleakError, match="cannot be written"):
            draw(overview, tmp_path / "a.docx")
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GradleakError, match=r"gradleak\[plot\]"):
        draw(overview, tmp_path / "a.png")


def test_labels_are_moved_apart_and_no_further() -> None:
    assert spread([10.0, 50.0], [6.0, 6.0]) == [10.0, 50.0]
    moved = spread([10.0, 11.0, 12.0, 60.0], [6.0] * 4)
    assert moved == pytest.approx([5.0, 11.0, 17.0, 60.0])
    assert spread([0.0, 1.0], [6.0, 6.0]) == pytest.approx([3.0, 9.0])
    assert spread([], []) == []
