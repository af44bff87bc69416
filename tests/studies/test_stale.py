from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from study_tools import grid, rows, save_bert, save_texts, small_study, toml, write_study
from test_driver import Scripted

import gradleak as gl
from gradleak.cli import main
from gradleak.errors import GradleakError
from gradleak.studies import Event, InProcess, RunOptions, Study, load_study, run_study
from gradleak.studies.execution.events import Planned
from gradleak.studies.records.stale import UNKNOWN, CellRecord, release, why_stale
from gradleak.studies.report.summary import summarise

MINE = "my.db"


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two cells of two sentences each."""
    return small_study(tmp_path, 4)


def rerun(study: Study, path: Path, *, keep_old: bool = False) -> tuple[int, dict[str, int]]:
    """Run a study and return how many cells it ran, and which finished ones it found stale."""
    executor, events = Scripted(), list[Event]()
    run_study(study, path, executor=executor, listener=events.append, options=RunOptions(keep_old=keep_old))
    assert isinstance(events[0], Planned)
    return len(executor.seen), dict(events[0].stale)


def as_made_by(path: Path, version: str) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE cells SET version = ?", (version,))
        file.commit()


def without_hashes(path: Path) -> None:
    """Make a file what it was before hashes: the id is that of the names alone."""
    with closing(sqlite3.connect(path)) as file:
        for old, text in file.execute("SELECT id, config FROM cells").fetchall():
            config = json.loads(text)
            del config["hashes"]
            new = f"old {old}"
            file.execute("UPDATE cells SET id = ?, config = ? WHERE id = ?", (new, json.dumps(config), old))
            file.execute("UPDATE sentences SET cell_id = ? WHERE cell_id = ?", (new, old))
        file.execute("DELETE FROM meta WHERE key = 'stale'")
        file.commit()


# --- weights, sentences, folders -------------------------------------------------------------------------------------


def test_nothing_is_run_twice_on_the_same_weights_and_sentences(tmp_path: Path, study: Study) -> None:
    assert rerun(study, tmp_path / MINE) == (2, {})
    assert rerun(study, tmp_path / MINE) == (0, {})


def test_new_weights_under_the_same_path_take_the_place_of_the_old_results(tmp_path: Path, study: Study) -> None:
    path = tmp_path / MINE
    run_study(study, path, executor=InProcess("cpu"))
    before = rows(path, "SELECT DISTINCT model_hash FROM cells")
    save_bert(tmp_path / "bert", seed=1)
    summary = run_study(study, path, executor=InProcess("cpu"))
    assert (summary.cells, summary.done, summary.fresh) == (2, 2, 2)
    assert rows(path, "SELECT DISTINCT model_hash FROM cells") != before
    assert rows(path, "SELECT count(*) FROM cells") == [(2,)]
    assert rows(path, "SELECT count(*) FROM sentences") == [(4,)]
    assert rows(path, "SELECT count(*) FROM batches") == [(2,)]
    assert rerun(study, path, keep_old=True) == (0, {})


def test_keep_old_does_not_keep_results_of_other_weights(tmp_path: Path, study: Study) -> None:
    rerun(study, tmp_path / MINE)
    save_bert(tmp_path / "bert", seed=1)
    assert rerun(study, tmp_path / MINE, keep_old=True) == (2, {"other weights": 2})


def test_a_changed_sentence_or_label_runs_its_own_cell_again(tmp_path: Path, study: Study) -> None:
    path, texts = tmp_path / MINE, tmp_path / "texts.csv"
    rerun(study, path)
    lines = texts.read_text().splitlines()
    texts.write_text("\n".join([*lines[:4], "a red dog,1"]) + "\n")
    assert rerun(study, path) == (1, {"other sentences": 1})
    texts.write_text("\n".join([lines[0], lines[1].replace(",0", ",1"), *lines[2:4], "a red dog,1"]) + "\n")
    assert rerun(study, path) == (1, {"other sentences": 1})


def test_sentences_that_are_not_taken_do_not_matter(tmp_path: Path) -> None:
    model, texts = save_bert(tmp_path / "bert"), save_texts(tmp_path, 4)
    study = load_study(write_study(tmp_path, grid(model, texts, dataset=[{"name": texts, "take": "0:2"}])))
    rerun(study, tmp_path / MINE)
    with Path(texts).open("a", encoding="utf-8") as file:
        file.write("one more,1\n")
    assert rerun(study, tmp_path / MINE) == (0, {})


def test_changed_test_sentences_run_a_training_again(tmp_path: Path) -> None:
    texts = save_texts(tmp_path, 8)
    keys = {
        "target": save_bert(tmp_path / "bert"),
        "train": {"name": texts, "take": "0:6"},
        "test": {"name": texts, "take": "6:8"},
    }
    study = load_study(write_study(tmp_path, "[[utility]]", *(f"{key} = {toml(value)}" for key, value in keys.items())))
    rerun(study, tmp_path / MINE)
    Path(texts).write_text(Path(texts).read_text().replace("on the mat", "on a mat"), encoding="utf-8")
    assert rerun(study, tmp_path / MINE) == (1, {"other test sentences": 1})


def test_a_new_model_in_a_folder_that_a_setting_names_runs_its_cells_again(tmp_path: Path) -> None:
    folder = tmp_path / "prior"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    lamp = {"name": "lamp", "settings": {"prior": str(folder)}}
    study = small_study(tmp_path, 2, attack=[lamp, "dlg"])
    rerun(study, tmp_path / MINE)
    (folder / "model.safetensors").write_bytes(b"two!")
    assert rerun(study, tmp_path / MINE) == (1, {"other prior": 1})


# --- versions and older files ----------------------------------------------------------------------------------------


def test_a_release_is_the_first_two_numbers_of_a_version() -> None:
    assert release("0.1.0") == release("0.1.7") == release("0.1.2.dev3") == "0.1"
    assert len({release("0.1.0"), release("0.2.0"), release("1.1.0")}) == 3


def test_results_of_the_same_release_stand_and_those_of_another_do_not(tmp_path: Path, study: Study) -> None:
    path = tmp_path / MINE
    rerun(study, path)
    as_made_by(path, f"{release(gl.__version__)}.99")
    assert rerun(study, path) == (0, {})
    as_made_by(path, "0.0.9")
    assert rerun(study, path, keep_old=True) == (0, {})
    assert rerun(study, path) == (2, {"made by gradleak 0.0.9": 2})
    assert rows(path, "SELECT DISTINCT version FROM cells") == [(gl.__version__,)]


def test_what_failed_for_good_in_another_release_is_tried_again(tmp_path: Path) -> None:
    study = small_study(tmp_path, 2, seed=[3])
    assert rerun(study, tmp_path / MINE)[0] == 3
    assert rerun(study, tmp_path / MINE)[0] == 0
    as_made_by(tmp_path / MINE, "0.0.9")
    assert rerun(study, tmp_path / MINE) == (3, {})


def test_records_without_hashes_are_shown_and_run_again_unless_kept(tmp_path: Path, study: Study) -> None:
    path = tmp_path / MINE
    run_study(study, path, executor=InProcess("cpu"))
    without_hashes(path)
    shown = summarise(path)
    assert (shown.finished, shown.rows[0].sentences, shown.old) == (2, 4, ((UNKNOWN, 2),))
    assert rerun(study, path, keep_old=True) == (0, {})
    assert summarise(path).finished == 2
    assert rerun(study, path) == (2, {UNKNOWN: 2})
    assert rows(path, "SELECT count(*) FROM cells") == [(2,)]


def test_changed_weights_are_named_before_the_version() -> None:
    record = CellRecord("1", "2", {"weights": "a", "sentences": "b"}, True, 1, "", "0.0.9")
    assert why_stale(record, {"weights": "c", "sentences": "d"}) == "other sentences, weights"
    assert why_stale(record, {"weights": "a", "sentences": "b"}) == "made by gradleak 0.0.9"
    assert why_stale(record, {"weights": "a", "sentences": "b"}, keep_old=True) is None


# --- in between ------------------------------------------------------------------------------------------------------


def test_stale_results_are_left_out_until_their_cells_have_run_again(tmp_path: Path, study: Study) -> None:
    path = tmp_path / MINE
    run_study(study, path, executor=InProcess("cpu"))
    save_bert(tmp_path / "bert", seed=1)

    class Interrupted(Scripted):
        def wait(self, moved: object) -> object:  # type: ignore[override]
            if self.seen:
                raise KeyboardInterrupt
            return super().wait(moved)

    with pytest.raises(KeyboardInterrupt):
        run_study(study, path, executor=Interrupted())
    assert rows(path, "SELECT count(*) FROM cells") == [(2,)]  # the second cell's old result is still in the file
    shown = summarise(path)
    assert (shown.finished, shown.stale, shown.old) == (1, (("other weights", 1),), ())
    assert rerun(study, path) == (1, {"other weights": 1})
    assert summarise(path).stale == ()


def test_a_file_of_stale_results_alone_says_so(tmp_path: Path, study: Study) -> None:
    path = tmp_path / MINE
    rerun(study, path)
    save_bert(tmp_path / "bert", seed=1)

    class Broken(Scripted):
        def wait(self, moved: object) -> object:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, path, executor=Broken())
    with pytest.raises(GradleakError, match=r"holds no finished cell yet; 2 stale \(other weights\)"):
        summarise(path)


def test_another_model_in_the_same_file_stays_stale(tmp_path: Path) -> None:
    study = small_study(tmp_path, 2)
    other = save_bert(tmp_path / "other", seed=2)
    path = tmp_path / MINE
    run_study(study, path, executor=InProcess("cpu"), targets=[other])
    save_bert(tmp_path / "other", seed=3)
    with pytest.raises(GradleakError, match="no folder"):
        run_study(study, tmp_path / "none" / MINE, executor=Scripted(), targets=[other])

    class Broken(Scripted):
        def wait(self, moved: object) -> object:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(study, path, executor=Broken(), targets=[other])
    run_study(study, path, executor=InProcess("cpu"))  # the study's own model
    assert summarise(path).stale == (("other weights", 1),)


def test_the_command_says_what_is_stale_and_keeps_it_if_asked(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["study", "run", "small.toml", "--device", "cpu"]
    assert main(arguments) == 0
    as_made_by(tmp_path / "small.db", "0.0.9")
    capsys.readouterr()
    assert main(["study", "show", "small.db"]) == 0
    told = "2 old cells shown (made by gradleak 0.0.9): `gradleak study run` runs them again, --keep-old keeps them"
    assert told in capsys.readouterr().out.replace("\n", " ")
    assert main([*arguments, "--keep-old"]) == 0
    assert "2 of 2 cells done, 0 of them now" in capsys.readouterr().out
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "2 cells, 0 done, 2 stale and run again (made by gradleak 0.0.9), about" in out
    assert "2 of 2 cells done, 2 of them now" in out
