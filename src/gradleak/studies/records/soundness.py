"""Checks of a file of records before its content is used: sound pages, our own tables alone, values as we write them.

A file may come from others. SQLite runs what its schema says: a view in place of a table may never end, and triggers
change other tables. So every statement of the schema must be one of gradleak's own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any

from gradleak.bounds import LARGEST_WHOLE, numbers_in
from gradleak.errors import GradleakError
from gradleak.printable import quoted

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE cells (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, config TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('done', 'failed')), error TEXT, attempts INTEGER NOT NULL,
    seconds REAL, finished_at TEXT NOT NULL, version TEXT NOT NULL, model_hash TEXT, machine TEXT
);
CREATE TABLE sentences (
    cell_id TEXT NOT NULL REFERENCES cells (id), batch INTEGER NOT NULL, position INTEGER NOT NULL,
    reference TEXT NOT NULL, reconstruction TEXT, label INTEGER,
    rouge1 REAL, rouge2 REAL, rougeL REAL, exact REAL, token_accuracy REAL, loss REAL
);
CREATE UNIQUE INDEX sentences_of_cell ON sentences (cell_id, batch, position);
CREATE TABLE utility (
    cell_id TEXT PRIMARY KEY REFERENCES cells (id),
    mcc REAL, accuracy REAL, loss REAL, epsilon REAL, steps INTEGER, examples INTEGER
);
"""
# Older files lack these tables: they are added when a file is opened for writing.
LATER = """
CREATE TABLE IF NOT EXISTS batches (
    cell_id TEXT NOT NULL REFERENCES cells (id), batch INTEGER NOT NULL,
    returned INTEGER, exact INTEGER, surplus INTEGER, unrepresentable INTEGER,
    PRIMARY KEY (cell_id, batch)
);
CREATE TABLE IF NOT EXISTS images (
    cell_id TEXT NOT NULL REFERENCES cells (id), batch INTEGER NOT NULL, position INTEGER NOT NULL,
    label INTEGER, read INTEGER, mse REAL, psnr REAL, ssim REAL, lpips REAL, loss REAL,
    PRIMARY KEY (cell_id, batch, position)
);
"""
REQUIRED = ("meta", "cells", "sentences", "utility")

Shape = Any
"""A type, a tuple of types, `[shape]` for a list, `{key: shape}` for an object, `{str: shape}` for one of any keys."""

DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What the database module raises over a damaged file; its own messages may quote text that is not UTF-8."""

NAME = str
SETTINGS: Shape = {str: (str, int, float, bool, NoneType)}
TARGET: Shape = {"name": NAME}
DATA: Shape = {"name": NAME}
CONFIGS: Mapping[str, Shape] = {
    "attack": {
        "target": TARGET,
        "dataset": DATA,
        "batch_size": int,
        "client": {"dropout": (bool, float, int), "embeddings": NAME},
        "attack": {"name": NAME},
    },
    "utility": {"target": TARGET},
    "images": {"target": TARGET, "dataset": DATA, "batch_size": int, "attack": {"name": NAME}},
}
"""What the description of a cell must have."""
OPTIONS: Mapping[tuple[str, ...], Shape] = {
    ("defenses",): [NAME],
    ("knowledge",): [NAME],
    ("hashes",): {str: NAME},
    ("target", "lora"): SETTINGS,
    ("target", "adapter"): NAME,
    ("dataset", "take"): NAME,
    ("train", "take"): NAME,
    ("test", "take"): NAME,
    ("client", "fedavg"): SETTINGS,
    ("client", "precision"): NAME,
    ("client", "send"): NAME,
    ("client", "clients"): int,
    ("attack", "preset"): NAME,
    ("attack", "settings"): SETTINGS,
}
"""What it may have; null stands for nothing."""


def is_refused_write(error: Exception) -> bool:
    """Return whether an error of the database says that its file cannot be written, rather than that it is damaged."""
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY)


def check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a GradleakError unless a file is sound and has our tables, and no views, triggers or other tables.

    Raises:
        sqlite3.Error: if it is no database at all.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    known = {_plain(statement) for statement in (*TABLES.split(";"), *LATER.split(";"))}
    tables = []
    for kind, name, statement in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        if kind == "table":
            tables.append(name)
        if statement is not None and _plain(str(statement)) not in known:  # indices that SQLite makes have none
            raise GradleakError(f"{path} is not a study file (its {kind} '{quoted(str(name))}' is none of gradleak's)")
    missing = next((name for name in REQUIRED if name not in tables), None)
    if missing is not None:
        raise GradleakError(f"{path} is not a study file (it has no table '{missing}')")
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise GradleakError(f"{path} is damaged: {quoted(str(found))}; restore it from a copy")


def read_config(text: object, path: Path) -> dict[str, Any]:
    """Return the description of a cell from its JSON text.

    Raises:
        GradleakError: if it is not what gradleak writes.
    """
    config = read_object(text, path, "a cell")
    shape = CONFIGS.get(str(config.get("kind", "attack")), {})
    if not _fits(config, shape):
        raise GradleakError(f"{path} is damaged: the description of a cell lacks something, or is of a wrong type")
    for keys, option in OPTIONS.items():
        value: Any = config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None and not _fits(value, option):
            raise GradleakError(f"{path} is damaged: a cell's {' '.join(keys)} is {quoted(json.dumps(value))}")
    return config


def read_reasons(facts: Mapping[Any, Any], path: Path) -> dict[str, str]:
    """Return why records are stale, by their cells' ids, as the facts about a study have it."""
    reasons = read_object(facts.get("stale", "{}"), path, "the list of stale cells")
    return {name: str(why) for name, why in reasons.items()}


def check_rows(rows: Iterable[tuple[Any, ...]], shapes: tuple[Shape, ...], path: Path, what: str) -> None:
    """Raise a GradleakError if a value of rows of a table is not of its column's types, or is not finite."""
    for row in rows:
        for value, shape in zip(row, shapes, strict=True):
            odd = isinstance(value, float) and not isfinite(value)
            if odd or not isinstance(value, shape) or (isinstance(value, int) and abs(value) > LARGEST_WHOLE):
                raise GradleakError(f"{path} is damaged: its {what} hold {quoted(repr(value))}; restore it from a copy")


def read_object(text: object, path: Path, what: str, shape: Shape = dict) -> dict[str, Any]:
    """Return the object in a JSON text of the file.

    Raises:
        GradleakError: if there is none, or one of another shape; `what` says what it describes.
    """
    try:
        content = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or any(abs(number) > LARGEST_WHOLE for number in numbers_in(content)):
        raise GradleakError(f"{path} is damaged: {what} is described by {quoted(repr(text)[:100])}, no JSON object")
    if not _fits(content, shape):
        raise GradleakError(f"{path} is damaged: {what} lacks something, or is of a wrong type")
    return content


def _fits(value: object, shape: Shape) -> bool:
    if isinstance(shape, dict):
        return isinstance(value, dict) and (
            all(_fits(item, shape[str]) for item in value.values())
            if str in shape
            else all(_fits(value.get(key), part) for key, part in shape.items())
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    return isinstance(value, shape) and not (isinstance(value, float) and not isfinite(value))


def _plain(statement: str) -> str:
    return " ".join(statement.replace("IF NOT EXISTS", "").split())
