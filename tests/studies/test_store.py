from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from study_tools import grid, rows

from gradleak.errors import GradleakError
from gradleak.studies import BatchRecord, Cell, Failure, Outcome, Sentence, Store, UtilityRecord
from gradleak.studies.definition.reading import Place
from gradleak.studies.definition.study import parse_study


def cells(count: int = 2) -> list[Cell]:
    found = parse_study(grid("tiny", "cola", seed=list(range(count)), batches_per_cell=50), Place("my"), "my").cells()
    return found[:count]


def sentence(position: int, reconstruction: str | None = "a cat") -> Sentence:
    return Sentence(
        batch=0,
        position=position,
        reference="the cat",
        reconstruction=reconstruction,
        label=1,
        rouge1=50.0,
        rouge2=0.0,
        rougeL=50.0,
        exact=0.0,
        token_accuracy=50.0,
        loss=None,
    )


def status(store: Store) -> dict[str, str]:
    """Return for each recorded cell `done`, or its attempts and its error."""
    return {cell.id: "done" if cell.done else f"{cell.attempts} {cell.error}" for cell in store.cells()}


def outcome(**changes: object) -> Outcome:
    facts = {"sentences": (sentence(0), sentence(1, None)), "seconds": 2.0, "version": "1", "model_hash": "abc"}
    return Outcome(**facts | {"machine": {"cores": 2}} | changes)  # type: ignore[arg-type]


def test_what_is_recorded_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    first, second = cells()
    utility = UtilityRecord(mcc=12.5, accuracy=60.0, loss=0.7, epsilon=None, steps=4, examples=80)
    with Store(path) as store:
        store.describe({"name": "my"})
        store.record(first, outcome(), attempts=1)
        store.record(second, outcome(sentences=(), utility=utility, seconds=4.0), attempts=2)
    with Store(path) as store:
        assert store.meta() == {"schema": "1", "name": "my"}
        assert status(store) == {first.id: "done", second.id: "done"}
        assert store.sentences(first.id) == [sentence(0), sentence(1, None)]
        assert store.utility(first.id) is None
        assert store.utility(second.id) == utility
        assert store.paces() == {("attack", "dlg"): (2, 3.0)}


def test_what_holds_for_a_batch_is_found_again(tmp_path: Path) -> None:
    (cell,) = cells(1)
    batches = (
        BatchRecord(batch=0, returned=3, exact=1, surplus=1, unrepresentable=0),
        BatchRecord(batch=1, returned=2, exact=2, surplus=0, unrepresentable=1),
    )
    with Store(tmp_path / "my.db") as store:
        store.record(cell, outcome(batches=batches), attempts=1)
        assert store.batches(cell.id) == list(batches)


def test_a_file_made_before_batches_were_counted_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    first, second = cells()
    with Store(path) as store:
        store.record(first, outcome(), attempts=1)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE batches")
    counted = BatchRecord(batch=0, returned=2, exact=1, surplus=0, unrepresentable=0)
    with Store(path) as store:
        store.record(second, outcome(batches=(counted,)), attempts=1)
        assert status(store) == {first.id: "done", second.id: "done"}
        assert (store.batches(first.id), store.batches(second.id)) == ([], [counted])


def test_a_failure_gives_way_to_a_success(tmp_path: Path) -> None:
    cell = cells()[0]
    with Store(tmp_path / "my.db") as store:
        store.record_failure(cell, Failure("boom"), attempts=1)
        store.record_failure(cell, Failure("bang"), attempts=2)
        assert status(store) == {cell.id: "2 bang"}
        store.record(cell, outcome(), attempts=3)
        assert status(store) == {cell.id: "done"}


def test_failures_can_be_forgotten(tmp_path: Path) -> None:
    first, second = cells()
    with Store(tmp_path / "my.db") as store:
        store.record_failure(first, Failure("boom"), attempts=3)
        store.record(second, outcome(), attempts=1)
        store.forget_failures()
        assert status(store) == {second.id: "done"}


def test_a_cell_is_recorded_whole_or_not_at_all(tmp_path: Path) -> None:
    cell = cells()[0]
    with Store(tmp_path / "my.db") as store:
        with pytest.raises(GradleakError, match="cannot be written: UNIQUE"):
            store.record(cell, outcome(sentences=(sentence(0), sentence(0))), attempts=1)
        assert status(store) == {}
        assert store.sentences(cell.id) == []
        store.record(cell, outcome(), attempts=1)  # and the store still works


def test_records_are_safe_on_disk_before_the_next_cell(tmp_path: Path) -> None:
    with Store(tmp_path / "my.db") as store:
        assert store._pragma("journal_mode") == "wal"
        assert store._pragma("synchronous") == 2  # FULL


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    path.write_text("these are not records " * 100)
    with pytest.raises(GradleakError, match=r"my\.db cannot be read as study records: file is not a database"):
        Store(path)
    assert path.read_text().startswith("these are not records")


def test_a_database_of_other_software_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (name)")
    with pytest.raises(GradleakError, match="is a database of other software"):
        Store(path)
    assert rows(path, "SELECT name FROM sqlite_master") == [("photos",)]


def test_a_file_of_a_newer_version_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    Store(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(GradleakError, match=r"was written by a newer gradleak \(schema 2, here 1\)"):
        Store(path)


def test_a_run_that_died_while_making_the_file_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "my.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    with Store(path) as store:
        assert store.meta() == {"schema": "1"}


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=r"my\.db cannot be written: No such file or directory"):
        Store(tmp_path / "none" / "my.db")


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def connect_to_a_full_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr("gradleak.studies.records.store.sqlite3.connect", connect_to_a_full_disk)
    with pytest.raises(GradleakError, match=r"my\.db cannot be written: database or disk is full"):
        Store(tmp_path / "my.db")


@pytest.mark.parametrize("existed", [True, False])
def test_a_store_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    def fail(store: Store) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    path = tmp_path / "my.db"
    if existed:
        path.touch()
    monkeypatch.setattr(Store, "_prepare", fail)
    with pytest.raises(GradleakError, match="disk is full"):
        Store(path)
    assert path.exists() is existed
