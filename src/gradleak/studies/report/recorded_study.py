"""Read the file of a study's records, without the store: also while a run writes it. Used by `summarise`."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from gradleak.bounds import whole_number
from gradleak.errors import GradleakError
from gradleak.metrics import SCORE_NAMES
from gradleak.printable import quoted
from gradleak.settings import settings_texts
from gradleak.studies.records.soundness import (
    CONFIGS,
    DATABASE_ERRORS,
    check_file,
    check_rows,
    read_config,
    read_reasons,
)
from gradleak.studies.records.stale import why_old
from gradleak.studies.report.conditions import NO_DEFENSE

MOST_TAKEN = 10_000_000  # position of a sentence in its dataset
BATCH_COUNTS = ("returned", "exact", "surplus", "unrepresentable")
IMAGE_SCORES = ("mse", "psnr", "ssim", "lpips")
SqlRow = tuple[Any, ...]


@dataclass(frozen=True)
class FinishedCell:
    """A finished cell as the file describes it."""

    id: Any
    kind: str
    config: Mapping[str, Any]
    seconds: float | None
    version: str

    @property
    def old(self) -> str | None:
        """Why the next run will find it stale, whatever its model and sentences are now; None if it will not."""
        return why_old(self.config.get("hashes"), self.version)

    @property
    def target(self) -> str:
        """The model's name."""
        target = self.config["target"]
        lora, adapter = target.get("lora"), target.get("adapter")
        notes = ["random weights"] if target.get("random_weights") else []
        notes += [f"LoRA {','.join(settings_texts(lora))}"] if lora else []
        notes += [f"adapter {adapter}"] if adapter else []
        return f"{target['name']} ({'; '.join(notes)})" if notes else str(target["name"])

    @property
    def defense(self) -> str:
        """The defenses, in order."""
        return " + ".join(self.config.get("defenses") or ()) or NO_DEFENSE

    def conditions(self) -> dict[str, Any]:
        """Return the value of each of `CONDITIONS`, for an attack cell."""
        config, client, attack = self.config, self.config["client"], self.config["attack"]
        fedavg = client.get("fedavg")
        return {
            "attack": attack["name"],
            "preset": attack.get("preset") or "paper",
            "settings": dict(attack.get("settings") or {}),
            "target": self.target,
            "dataset": config["dataset"]["name"],
            "batch_size": config["batch_size"],
            "dropout": client["dropout"],
            "embeddings": client["embeddings"],
            "fedavg": ",".join(settings_texts(fedavg)) if fedavg else "none",
            "precision": client.get("precision", "fp32"),
            "send": client.get("send", "fp32"),
            "clients": client.get("clients", 1),
            "defense": self.defense,
            "knowledge": sorted(config.get("knowledge") or ()),
        }

    def image_conditions(self) -> dict[str, Any]:
        """Return the value of each of `IMAGE_CONDITIONS`, for a cell of images."""
        config, attack = self.config, self.config["attack"]
        return {
            "attack": attack["name"],
            "preset": attack.get("preset") or "paper",
            "settings": dict(attack.get("settings") or {}),
            "target": self.target,
            "dataset": config["dataset"]["name"],
            "batch_size": config["batch_size"],
            "defense": self.defense,
            "knowledge": sorted(config.get("knowledge") or ()),
        }


@dataclass(frozen=True)
class RecordedStudy:
    """The content of a study's file.

    Attributes:
        facts: name, title and source of the study.
        cells: the finished cells that are not stale.
        errors: every error, and the number of cells that failed with it.
        stale: cells that a run has found stale: each reason, and the number of finished cells.
        sentences: (cell, batch, score, …) of every attacked sentence, in a fixed order.
        batches: (cell, count, …) of every batch, with the counts of `BATCH_COUNTS`; none in older files.
        trainings: (cell, MCC, accuracy, ε) of every utility cell.
        images: (cell, batch, score, …) of every attacked image, with `IMAGE_SCORES`; none in older files.
    """

    facts: Mapping[str, str]
    cells: Sequence[FinishedCell]
    errors: Counter[str]
    stale: Counter[str]
    sentences: Sequence[SqlRow]
    batches: Sequence[SqlRow]
    trainings: Sequence[SqlRow]
    images: Sequence[SqlRow] = ()

    def of_kind(self, kind: str) -> list[FinishedCell]:
        """Return the finished cells of a kind: `attack`, `utility` or `images`."""
        return [cell for cell in self.cells if cell.kind == kind]


def read_study(path: Path) -> RecordedStudy:
    """Read a study's file as of one moment.

    Raises:
        GradleakError: if there is no such file, or it is not one of study records.
    """
    if not path.is_file():
        raise GradleakError(f"there is no study file {path}")
    cells, facts, *tables = _read(path)
    reasons = read_reasons(facts, path)
    finished, errors, stale = list[FinishedCell](), Counter[str](), Counter[str]()
    for name, kind, config, status, error, seconds, version in cells:
        if name in reasons:
            stale.update([reasons[name]] if status == "done" else [])
        elif status == "done":
            finished.append(FinishedCell(name, kind, _described(kind, config, path), seconds, version))
        else:
            errors[str(error or "unknown error")] += 1
    return RecordedStudy(facts, finished, errors, stale, *tables)


def _read(path: Path) -> tuple[list[SqlRow], dict[str, str], list[SqlRow], list[SqlRow], list[SqlRow], list[SqlRow]]:
    """Return cells, facts, sentences, batches, trainings and images, all in one transaction."""
    columns = "id, kind, config, status, error, seconds, version"
    order = "ORDER BY cell_id, batch, position"
    try:
        with closing(sqlite3.connect(read_address(path), uri=True, isolation_level=None)) as file:
            file.execute("BEGIN")
            check_file(file, path)
            tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master").fetchall()}
            cells = file.execute(f"SELECT {columns} FROM cells ORDER BY id").fetchall()
            facts = file.execute("SELECT key, value FROM meta").fetchall()
            scores = file.execute(f"SELECT cell_id, batch, {', '.join(SCORE_NAMES)} FROM sentences {order}").fetchall()
            counted = f"SELECT cell_id, {', '.join(BATCH_COUNTS)} FROM batches"
            counts = file.execute(counted).fetchall() if "batches" in tables else []
            pictured = f"SELECT cell_id, batch, {', '.join(IMAGE_SCORES)} FROM images {order}"
            images = file.execute(pictured).fetchall() if "images" in tables else []
            trainings = file.execute("SELECT cell_id, mcc, accuracy, epsilon FROM utility ORDER BY cell_id").fetchall()
    except DATABASE_ERRORS as error:
        raise GradleakError(f"{path} is not a study file ({error})") from None
    number = (int, float)
    maybe = (int, float, NoneType)
    check_rows(cells, (str, str, str, str, (str, NoneType), maybe, str), path, "cells")
    check_rows(facts, (str, str), path, "facts")
    check_rows(scores, (str, int, *(number for _ in SCORE_NAMES)), path, "sentences")
    check_rows(counts, (str, *(int for _ in BATCH_COUNTS)), path, "batches")
    check_rows(trainings, (str, maybe, maybe, maybe), path, "utilities")
    check_rows(images, (str, int, number, number, maybe, maybe), path, "images")
    return cells, dict(facts), scores, counts, trainings, images


def _described(kind: str, text: str, path: Path) -> dict[str, Any]:
    """Return the description of a cell of this kind."""
    config = read_config(text, path)
    if kind not in CONFIGS or config.get("kind", kind) != kind:
        raise GradleakError(f"{path} is damaged: a cell is of the kind '{quoted(kind)}'; restore it from a copy")
    for data in ("dataset", "train", "test"):
        try:
            taken(config.get(data) or {})
        except (ValueError, AttributeError):
            raise GradleakError(
                f"{path} is damaged: a cell takes no range of examples; restore it from a copy"
            ) from None
    return config


def read_address(path: Path) -> str:
    """Return the address by which SQLite opens a file for reading and creates no further files."""
    # Without a write-ahead log nobody writes the file, which may then be opened as immutable.
    written = path.with_name(f"{path.name}-wal").exists()
    return f"{path.absolute().as_uri()}?{'mode=ro' if written else 'immutable=1'}"


def taken(dataset: Mapping[str, Any]) -> range:
    """Return the positions of a cell's sentences in its dataset; an empty range if they were not recorded."""
    start, _, stop = (dataset.get("take") or "").partition(":")
    return range(whole_number(start or "0", 0, MOST_TAKEN), whole_number(stop, 0, MOST_TAKEN)) if stop else range(0)
