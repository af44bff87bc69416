"""What the tests of studies share."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from conftest import small_target
from gradleak.studies import Study, load_study

WORDS = [
    "the cat sat",
    "a big dog ran",
    "red mat",
    "the dog sat on a mat",
    "a cat",
    "big red cat ran",
    "dog",
    "on the mat",
]
LIMIT = 120.0


def save_bert(folder: Path, seed: int = 0) -> str:
    """Save a small BERT as a directory that a study can name."""
    target = small_target("bert", seed=seed)
    target.model.save_pretrained(folder)  # type: ignore[operator]
    target.tokenizer.save_pretrained(folder)
    return str(folder)


def save_texts(folder: Path, count: int = 8) -> str:
    """Save sentences with labels as a file that a study can name."""
    path = folder / "texts.csv"
    lines = [f"{WORDS[number % len(WORDS)]},{number % 2}" for number in range(count)]
    path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    return str(path)


def grid(model: str, texts: str, **keys: Any) -> str:
    """Return a grid's TOML; keys replace and add."""
    settings = {
        "target": [model],
        "dataset": [{"name": texts}],
        "batch_size": [2],
        "attack": [{"name": "dlg", "settings": {"steps": 3}}],
        "batches_per_cell": 1,
    }
    return "\n".join(["[[grid]]", *(f"{key} = {toml(value)}" for key, value in (settings | keys).items())]) + "\n"


def toml(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def write_study(folder: Path, *tables: str, name: str = "small") -> Path:
    """Write a study file."""
    path = folder / f"{name}.toml"
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


def small_study(folder: Path, count: int = 8, **keys: Any) -> Study:
    """Write and load a study of a small BERT, with a cell of two sentences each."""
    model = save_bert(folder / "bert")
    return load_study(write_study(folder, grid(model, save_texts(folder, count), **keys)))


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Look into a store."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return connection.execute(query).fetchall()


def records(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all that a store holds but what differs from run to run: times, attempts, machine."""
    return {
        "cells": rows(path, "SELECT id, kind, config, status, error, version, model_hash FROM cells ORDER BY id"),
        "sentences": rows(path, "SELECT * FROM sentences ORDER BY cell_id, batch, position"),
        "utility": rows(path, "SELECT * FROM utility ORDER BY cell_id"),
    }


def done(path: Path) -> int:
    """Return how many cells a store has finished; 0 while there is no store."""
    try:
        return int(rows(path, "SELECT count(*) FROM cells WHERE status = 'done'")[0][0])
    except sqlite3.OperationalError:
        return 0


def until(happened: Callable[[], object], what: str, limit: float = LIMIT) -> None:
    """Wait for something."""
    end = time.monotonic() + limit
    while not happened():
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit:.0f} s in vain until {what}")
        time.sleep(0.02)


def children(pid: int, kind: str = "spawn_main") -> list[int]:
    """Return the worker processes of a driver."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(child) for child in found if kind in _command(int(child))]


def alive(pid: int) -> bool:
    """Tell whether a process is there and not just waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except OSError:
        return ""


def in_background(work: Callable[..., object], *arguments: object, output: Path) -> Any:
    """Run a function in a process of its own that has imported all that this one has; its output goes to a file."""
    process = multiprocessing.get_context("fork").Process(target=_apart, args=(work, arguments, output))
    process.start()
    return process


def _apart(work: Callable[..., object], arguments: Sequence[object], output: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]  # those of the test are not ours to end
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        code = work(*arguments)
        file.flush()
    os._exit(code if isinstance(code, int) else 0)
