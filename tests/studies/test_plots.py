from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import pytest
from test_summary import attack_config, run, small_study, utility_config, write_study

from gradleak.errors import GradleakError
from gradleak.studies.report.panels import find_panels
from gradleak.studies.report.placing import spread
from gradleak.studies.report.plots import draw
from gradleak.studies.report.summary import summarise

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


def judged_study(path: Path, attacked: int, tested: int) -> Path:
    """A study of two defenses with so many attacked and tested sentences."""
    data = {"name": "cola", "take": f"0:{attacked}"}
    cells = [(attack_config(defenses=d, dataset=data), [50.0] * attacked) for d in ([], ["sign"])]
    test = {"test": {"name": "cola", "take": f"7:{7 + tested}"}}
    return write_study(path, cells, [(utility_config() | test, 0.5), (utility_config("sign") | test, 0.1)])


@pytest.mark.parametrize(
    ("attacked", "tested", "enough"), [(4, 4, False), (29, 100, False), (30, 99, False), (30, 100, True)]
)
def test_a_verdict_needs_thirty_attacked_and_a_hundred_test_sentences(
    tmp_path: Path, attacked: int, tested: int, enough: bool
) -> None:
    (panel,) = find_panels(summarise(judged_study(tmp_path / "a.db", attacked, tested)), ["leakage-utility"])
    assert panel.sample.startswith(f"{attacked} attacked and {tested} test sentences")
    assert ("too few to judge a defense (30 and 100)" in panel.sample) is not enough
    assert panel.verdict == ("useful and private" if enough else "")


@pytest.mark.parametrize(("attacked", "enough"), [(29, False), (30, True)])
def test_the_verdict_and_the_sample_are_drawn(tmp_path: Path, attacked: int, enough: bool) -> None:
    pytest.importorskip("matplotlib")
    draw(summarise(judged_study(tmp_path / "a.db", attacked, 100)), tmp_path / "a.svg", ["leakage-utility"])
    assert f"{attacked} attacked and 100 test" in written(tmp_path / "a.svg")
    assert ("useful and private" in written(tmp_path / "a.svg")) is enough


def written(picture: Path) -> str:
    """Return the words of an SVG: matplotlib draws letters, and keeps the text in comments."""
    return " ".join(re.findall(r"<!-- (.*?) -->", picture.read_text(), flags=re.DOTALL))


def test_the_same_sentence_under_several_seeds_counts_once(tmp_path: Path) -> None:
    cells = [(attack_config(batch_size=size, seed=seed), [50.0] * 8) for size in (1, 2) for seed in range(5)]
    overview = summarise(write_study(tmp_path / "a.db", cells))
    assert [(row.sentences, row.different) for row in overview.rows] == [(40, 8), (40, 8)]
    (panel,) = find_panels(overview)
    assert panel.sample == "sentences for each point: 8"


def test_no_text_is_cut_off_however_long_the_names_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    name = "/home/someone/" + "a-long-path/" * 6 + "model"
    data = {"name": "private/" + "notes-" * 12 + "all.csv", "take": "0:8"}
    cells = [(attack_config(batch_size=size, target={"name": name}, dataset=data), [50.0]) for size in (1, 2)]
    overview = summarise(write_study(tmp_path / "a.db", cells, meta={"name": "a-study-of-a-very-long-name-" * 3}))
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        drawn.append(figure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        draw(overview, tmp_path / "a.png")
    (figure,) = drawn
    title = figure._suptitle  # type: ignore[attr-defined]
    assert title.get_text().replace("\n", "").replace(" ", "").endswith("embeddingsfrozen,FedSGD,nodefense)")
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for text in (title, *figure.axes[0].texts):
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_gradleaks_own_attack_is_marked(tmp_path: Path) -> None:
    cells = [(attack_config(name, batch_size=size), [50.0]) for name in ("tag", "sieve") for size in (1, 2)]
    (panel,) = find_panels(summarise(write_study(tmp_path / "a.db", cells)))
    assert sorted(panel.lines) == ["sieve (ours)", "tag"]


def test_dropout_rates_are_places_on_the_axis(tmp_path: Path) -> None:
    cells = [(attack_config(dropout=rate), [50.0]) for rate in (0.1, 0.4, 0.2, False)]
    (panel,) = find_panels(summarise(write_study(tmp_path / "a.db", cells)))
    assert panel.ticks == ("off", "0.1", "0.2", "0.4")


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
    assert len(draw(overview, tmp_path / "all.png")) == 5
    for name, start in {"all.png": b"\x89PNG", "a.pdf": b"%PDF", "a.svg": b"<?xml"}.items():
        if not (tmp_path / name).exists():
            draw(overview, tmp_path / name, ["leakage-noise"])
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
