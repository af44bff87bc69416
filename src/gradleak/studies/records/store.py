"""The store: one SQLite file with the records of a study, written in one transaction per cell.

Written by the driver only. `summarise` reads the file without it, also while a run writes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, Self

from gradleak.errors import GradleakError
from gradleak.files import create_private
from gradleak.studies.definition.cells import Cell, setting_of
from gradleak.studies.records.outcome import BatchRecord, Failure, ImageRecord, Outcome, Sentence, UtilityRecord
from gradleak.studies.records.soundness import (
    DATABASE_ERRORS,
    LATER,
    TABLES,
    check_file,
    check_rows,
    is_refused_write,
    read_config,
    read_object,
)
from gradleak.studies.records.stale import CellRecord
from gradleak.version import __version__

SCHEMA = 1
APPLICATION = 0x67_6C_65_61  # "glea": marks a SQLite file as one of study records


class Store:
    """The file of a study's records.

    Args:
        path: the file; created if it does not exist.

    Raises:
        GradleakError: if the file is not one of study records, or a newer gradleak wrote it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        is_new = not self.path.exists()
        create_private(self.path)  # or SQLite would let everybody read the private sentences
        try:
            self._connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        except sqlite3.Error as error:
            raise GradleakError(f"{path} cannot be opened: {error}") from None
        try:
            self._prepare()
        except (*DATABASE_ERRORS, GradleakError) as error:
            self.close()
            if is_new and not self.path.stat().st_size:  # the disk is full
                self.path.unlink()
            if isinstance(error, GradleakError):
                raise
            problem = "cannot be written" if is_refused_write(error) else "cannot be read as study records"
            raise GradleakError(f"{path} {problem}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def meta(self) -> dict[str, str]:
        """Return the facts about the study: name, title, source, reasons of stale records."""
        return dict(self._rows("SELECT key, value FROM meta"))

    def cells(self) -> list[CellRecord]:
        """Return all cells, finished and failed, without their results."""
        rows = self._rows("SELECT id, config, status, attempts, error, version FROM cells ORDER BY id")
        check_rows(rows, (str, str, str, int, (str, NoneType), str), self.path, "cells")
        return [
            CellRecord(name, setting_of(config), config.get("hashes"), status == "done", attempts, error or "", version)
            for name, config, status, attempts, error, version in (
                (row[0], read_config(row[1], self.path), *row[2:]) for row in rows
            )
        ]

    def paces(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Return the number of finished cells and their mean seconds, for each kind and attack."""
        rows = self._rows(
            "SELECT kind, coalesce(json_extract(config, '$.attack.name'), ''), count(*), avg(seconds) "
            "FROM cells WHERE status = 'done' GROUP BY 1, 2"
        )
        check_rows(rows, (str, str, int, (int, float, NoneType)), self.path, "seconds")
        return {(kind, attack): (count, seconds or 0.0) for kind, attack, count, seconds in rows}

    def sentences(self, cell: str) -> list[Sentence]:
        """Return the sentences of an attack cell, in order."""
        names = [field.name for field in fields(Sentence)]
        rows = self._rows(
            f"SELECT {', '.join(names)} FROM sentences WHERE cell_id = ? ORDER BY batch, position", (cell,)
        )
        return [Sentence(**dict(zip(names, row, strict=True))) for row in rows]

    def batches(self, cell: str) -> list[BatchRecord]:
        """Return the counts of an attack cell's batches, in order; none if an older version recorded the cell."""
        names = [field.name for field in fields(BatchRecord)]
        rows = self._rows(f"SELECT {', '.join(names)} FROM batches WHERE cell_id = ? ORDER BY batch", (cell,))
        return [BatchRecord(**dict(zip(names, row, strict=True))) for row in rows]

    def images(self, cell: str) -> list[ImageRecord]:
        """Return the images of a cell of images, in order."""
        names = [field.name for field in fields(ImageRecord)]
        rows = self._rows(f"SELECT {', '.join(names)} FROM images WHERE cell_id = ? ORDER BY batch, position", (cell,))
        return [ImageRecord(**dict(zip(names, row, strict=True))) for row in rows]

    def utility(self, cell: str) -> UtilityRecord | None:
        """Return the result of a utility cell; None for other cells."""
        names = [field.name for field in fields(UtilityRecord)]
        rows = self._rows(f"SELECT {', '.join(names)} FROM utility WHERE cell_id = ?", (cell,))
        return UtilityRecord(**dict(zip(names, rows[0], strict=True))) if rows else None

    def provenance(self, cell: str) -> tuple[float, str, str, dict[str, Any]] | None:
        """Return seconds, version, model hash and machine of a finished cell; None for other cells."""
        rows = self._rows(
            "SELECT seconds, version, model_hash, machine FROM cells WHERE id = ? AND status = 'done'", (cell,)
        )
        if not rows:
            return None
        seconds, version, model_hash, machine = rows[0]
        return seconds, version, model_hash, read_object(machine, self.path, "the machine of a cell")

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except DATABASE_ERRORS as error:
            raise GradleakError(f"{self.path} is damaged: {error}; restore it from a copy") from None

    # --- writing -----------------------------------------------------------------------------------------------------

    def describe(self, facts: Mapping[str, str]) -> None:
        """Record facts about the study."""
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items())

    def record(self, cell: Cell, outcome: Outcome, attempts: int, replaces: Sequence[str] = ()) -> None:
        """Record a finished cell in one transaction, in place of the stale records `replaces`."""
        with self._transaction():
            self._delete(replaces)
            self._put(cell, "done", None, attempts, outcome)
            self._connection.executemany(
                f"INSERT INTO sentences (cell_id, {_names(Sentence)}) VALUES (?, {_marks(Sentence)})",
                [(cell.id, *astuple(sentence)) for sentence in outcome.sentences],
            )
            self._connection.executemany(
                f"INSERT OR REPLACE INTO batches (cell_id, {_names(BatchRecord)}) VALUES (?, {_marks(BatchRecord)})",
                [(cell.id, *astuple(batch)) for batch in outcome.batches],
            )
            self._connection.executemany(
                f"INSERT OR REPLACE INTO images (cell_id, {_names(ImageRecord)}) VALUES (?, {_marks(ImageRecord)})",
                [(cell.id, *astuple(image)) for image in outcome.images],
            )
            if outcome.utility is not None:
                self._connection.execute(
                    f"INSERT INTO utility (cell_id, {_names(UtilityRecord)}) VALUES (?, {_marks(UtilityRecord)})",
                    (cell.id, *astuple(outcome.utility)),
                )

    def record_failure(self, cell: Cell, failure: Failure, attempts: int, replaces: Sequence[str] = ()) -> None:
        """Record that a cell failed, in place of the stale records `replaces`."""
        with self._transaction():
            self._delete(replaces)
            self._put(cell, "failed", failure.error, attempts, None)

    def forget_failures(self) -> None:
        """Delete the records of failed cells, and with them their attempts."""
        with self._transaction():
            self._connection.execute("DELETE FROM cells WHERE status = 'failed'")

    def _delete(self, ids: Sequence[str]) -> None:
        for table, column in (
            ("sentences", "cell_id"),
            ("batches", "cell_id"),
            ("utility", "cell_id"),
            ("images", "cell_id"),
            ("cells", "id"),
        ):
            self._connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(name,) for name in ids])

    def _put(self, cell: Cell, status: str, error: str | None, attempts: int, outcome: Outcome | None) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                cell.id,
                cell.kind,
                json.dumps(cell.config, ensure_ascii=False),
                status,
                error,
                attempts,
                outcome.seconds if outcome else None,
                datetime.now(UTC).isoformat(timespec="seconds"),
                outcome.version if outcome else __version__,
                outcome.model_hash if outcome else None,
                json.dumps(dict(outcome.machine)) if outcome else None,
            ),
        )

    # --- the file ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        application, version = (self._pragma(name) for name in ("application_id", "user_version"))
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != APPLICATION and tables:
            raise GradleakError(f"{self.path} is a database of other software, not a file of study records")
        if application == APPLICATION and version > SCHEMA:
            raise GradleakError(
                f"{self.path} was written by a newer gradleak (schema {version}, here {SCHEMA}): "
                "pip install --upgrade gradleak"
            )
        if tables:
            check_file(self._connection, self.path)
        self._pragma("journal_mode = WAL")
        self._pragma("synchronous = FULL")
        if not tables:
            self._create()
        for statement in filter(str.strip, LATER.split(";")):
            self._connection.execute(statement)

    def _create(self) -> None:
        with self._transaction():
            for statement in filter(str.strip, TABLES.split(";")):
                self._connection.execute(statement)
            self._connection.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA),))
            self._pragma(f"application_id = {APPLICATION}")
            self._pragma(f"user_version = {SCHEMA}")

    def _pragma(self, text: str) -> Any:  # noqa: ANN401 - a SQLite value
        row = self._connection.execute(f"PRAGMA {text}").fetchone()
        return row[0] if row else None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the body writes, or roll it back if it raises."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):  # SQLite rolls back by itself if the disk is full
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise GradleakError(f"{self.path} cannot be written: {error}") from None
            raise


def _names(kind: type[Any]) -> str:
    return ", ".join(field.name for field in fields(kind))


def _marks(kind: type[Any]) -> str:
    return ", ".join("?" for _ in fields(kind))
