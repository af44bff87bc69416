"""What a study found so far: its records, one row per configuration.

    overview = summarise("quick.db")
    overview.rows[0].scores["rouge1"].mean

Cells that differ only in seed, or in which part of a dataset they hold, are one configuration. Each score comes with a
95 % bootstrap interval that resamples whole batches: sentences of a batch were attacked together.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.errors import GradleakError, unknown_name
from gradleak.metrics import SCORE_NAMES, share
from gradleak.studies.records.stale import why_old
from gradleak.studies.report.intervals import bootstrap
from gradleak.studies.report.published import Published, find_published

CONDITIONS = (
    "attack",
    "preset",
    "settings",
    "target",
    "dataset",
    "batch_size",
    "dropout",
    "embeddings",
    "fedavg",
    "defense",
    "knowledge",
)
"""What makes a configuration, in the order of the columns."""

TOGETHER = {"attack": ("attack", "preset", "settings"), "client": ("dropout", "embeddings", "fedavg")}
"""Names of `--by` that stand for several conditions."""

BATCH_COUNTS = ("returned", "exact", "surplus", "unrepresentable")
NO_DEFENSE = "none"
OURS = ("sieve", "auto", "mosaic")
"""Attacks that are gradleak's own, of no paper; tables and plots mark them."""

ATTACK_ORDER = ("dlg", "tag", "lamp", "lamp-l2l1", "grab", "fet", "edr", "lti", "lti-p", "mosaic", "sieve")
"""From the oldest to the newest, as the papers' tables have them; others follow by name."""


@dataclass(frozen=True)
class Estimate:
    """A mean over sentences and its 95 % interval, from resampled batches."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Usefulness:
    """How well the model learns under a defense, averaged over the cells that measured it.

    Attributes:
        target: the model.
        defense: what was done to its updates.
        mcc: Matthews' correlation, from -1 to 1.
        accuracy: share of right predictions, from 0 to 1.
        epsilon: the privacy loss, where the defense bounds it.
        cells: how many trainings.
        tested: how many sentences each was tested on, the fewest of all; None if that was not recorded.
        published: what the paper reports, if this is one of its settings.
    """

    target: str
    defense: str
    mcc: float | None
    accuracy: float | None
    epsilon: float | None
    cells: int
    tested: int | None = None
    published: Published | None = None


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
        conditions: the value of each of `CONDITIONS`; None where the row's cells differ.
        sentences: how many sentences were attacked, one that several seeds attack counted for each of them.
        cells: how many cells they come from.
        scores: each score, from 0 to 100.
        seconds: per sentence.
        published: what the paper reports, if this is one of its settings.
        utility: what the defense costs, if the study measured it.
        precision: share of the returned texts that are exactly a private text of their batch, in per cent; None if some
            of its cells were recorded before it was counted, or nothing was returned.
        surplus: how many texts were returned beyond the sentences of their batches; None as above.
        unrepresentable: how many of the sentences the tokenizer cannot write in full; None as above.
        different: how many different sentences were attacked.
    """

    conditions: Mapping[str, Any]
    sentences: int
    cells: int
    scores: Mapping[str, Estimate]
    seconds: float | None
    published: Published | None = None
    utility: Usefulness | None = None
    different: int = 0
    precision: float | None = None
    surplus: int | None = None
    unrepresentable: int | None = None


@dataclass(frozen=True)
class Overview:
    """What a study holds.

    Attributes:
        study: its name, if its file says so.
        title: what it is about.
        by: the conditions that tell its rows apart.
        rows: one per configuration; what is compared stands together: attacks, then defenses, then batch sizes.
        utilities: one per model and defense.
        finished: how many cells are done.
        failed: every error and how many cells ended with it, the most frequent first.
        stale: cells that are left out because a run found them stale: why, and how many.
        old: cells that are shown and that a run would find stale: why, and how many.
    """

    study: str | None
    title: str
    by: tuple[str, ...]
    rows: tuple[Row, ...]
    utilities: tuple[Usefulness, ...]
    finished: int
    failed: tuple[tuple[str, int], ...]
    stale: tuple[tuple[str, int], ...] = ()
    old: tuple[tuple[str, int], ...] = ()

    @cached_property
    def same(self) -> dict[str, Any]:
        """The conditions that are the same in all rows."""
        return {
            name: self.rows[0].conditions[name]
            for name in CONDITIONS
            if self.rows and len({_key(row.conditions[name]) for row in self.rows} | {_key(None)}) == 2
        }

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The conditions that tell the rows apart, without those that are the same in all of them."""
        same = self.same
        return tuple(name for name in self.by if name not in same)


def summarise(path: str | Path, by: Sequence[str] | None = None) -> Overview:
    """Read a study's file and merge its cells to rows.

    Args:
        path: the SQLite file that `study run` writes.
        by: which conditions tell rows apart; all of them if it is left out.

    Raises:
        GradleakError: if there is no such file, it is no study, or nothing in it has finished.
    """
    chosen = parse_by(by)
    path = Path(path)
    if not path.is_file():
        raise GradleakError(f"there is no study file {path}")
    cells, meta, sentences, batches, trained = _read(path)
    reasons: dict[str, str] = json.loads(meta.get("stale", "{}"))
    stale = Counter(reasons[cell[0]] for cell in cells if cell[0] in reasons and cell[3] == "done")
    cells = [cell for cell in cells if cell[0] not in reasons]
    done = [Finished(cell[0], cell[1], json.loads(cell[2]), cell[5], cell[6]) for cell in cells if cell[3] == "done"]
    errors = Counter(str(cell[4] or "unknown error") for cell in cells if cell[3] == "failed")
    if not done:
        failed = f"; {sum(errors.values())} failed, with: {errors.most_common(1)[0][0]}" if errors else ""
        left_out = "".join(f"; {count} stale ({why})" for why, count in stale.most_common())
        raise GradleakError(f"{path} holds no finished cell yet{left_out}{failed}")
    study = meta.get("name") or None
    utilities = tuple(
        replace(utility, published=find_published(study, {"target": utility.target, "defense": utility.defense}))
        for utility in _utilities([cell for cell in done if cell.kind == "utility"], trained)
    )
    rows = _rows([cell for cell in done if cell.kind == "attack"], sentences, batches, chosen)
    return Overview(
        study=study,
        title=meta.get("title") or "",
        by=chosen,
        rows=tuple(_beside(row, study, utilities) for row in rows),
        utilities=utilities,
        finished=len(done),
        failed=tuple(errors.most_common()),
        stale=tuple(stale.most_common()),
        old=tuple(Counter(filter(None, (cell.old for cell in done))).most_common()),
    )


def _read(path: Path) -> tuple[list[Any], dict[str, str], list[Any], list[Any], list[Any]]:
    """Return cells, facts about the study, sentences, batches and utility as of one moment, in a fixed order."""
    # A file that nobody writes is opened as one that cannot change: else SQLite would leave two files beside it.
    written = path.with_name(f"{path.name}-wal").exists()
    columns = "id, kind, config, status, error, seconds, version"
    order = "ORDER BY cell_id, batch, position"
    address = f"{path.absolute().as_uri()}?{'mode=ro' if written else 'immutable=1'}"
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as file:
            file.execute("BEGIN")
            counted = file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'batches'").fetchone()[0]
            return (
                file.execute(f"SELECT {columns} FROM cells ORDER BY id").fetchall(),
                dict(file.execute("SELECT key, value FROM meta").fetchall()),
                file.execute(f"SELECT cell_id, batch, {', '.join(SCORE_NAMES)} FROM sentences {order}").fetchall(),
                file.execute(f"SELECT cell_id, {', '.join(BATCH_COUNTS)} FROM batches").fetchall() if counted else [],
                file.execute("SELECT cell_id, mcc, accuracy, epsilon FROM utility ORDER BY cell_id").fetchall(),
            )
    except sqlite3.Error as error:
        raise GradleakError(f"{path} is not a study file ({error})") from None


def parse_by(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the conditions that names of `--by` stand for, in the order of the columns."""
    if names is None:
        return CONDITIONS
    chosen: set[str] = set()
    for name in names:
        plain = name.strip().replace("-", "_")
        if plain not in (*CONDITIONS, *TOGETHER):
            raise unknown_name("column", name.strip(), {*CONDITIONS, *TOGETHER})
        chosen.update(TOGETHER.get(plain, (plain,)))
    return tuple(name for name in CONDITIONS if name in chosen)


@dataclass(frozen=True)
class Finished:
    """A finished cell."""

    id: Any
    kind: str
    config: Mapping[str, Any]
    seconds: float | None
    version: str

    @property
    def old(self) -> str | None:
        """Why a run would find it stale whatever its model and sentences are now; None if it would not."""
        return why_old(self.config.get("hashes"), self.version)

    @property
    def target(self) -> str:
        """The model's name."""
        target = self.config["target"]
        return f"{target['name']}{' (random weights)' if target.get('random_weights') else ''}"

    @property
    def defense(self) -> str:
        """The defenses, one after the other."""
        return " + ".join(self.config.get("defenses") or ()) or NO_DEFENSE

    def conditions(self) -> dict[str, Any]:
        """Return the value of each of `CONDITIONS`."""
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
            "fedavg": ",".join(f"{k}={v:g}" for k, v in fedavg.items() if v is not None) if fedavg else "none",
            "defense": self.defense,
            "knowledge": sorted(config.get("knowledge") or ()),
        }


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows(
    cells: Sequence[Finished],
    sentences: Sequence[tuple[Any, ...]],
    batches: Sequence[tuple[Any, ...]],
    by: Sequence[str],
) -> list[Row]:
    groups: dict[str, int] = {}
    conditions: list[dict[str, Any]] = []
    members: list[list[Finished]] = []
    row_of: dict[Any, int] = {}
    for cell in cells:
        found = cell.conditions()
        number = groups.setdefault(_key([found[name] for name in by]), len(groups))
        if number == len(conditions):
            conditions.append(found)
            members.append([])
        shared = conditions[number]
        shared.update({name: None for name in CONDITIONS if shared[name] != found[name]})
        members[number].append(cell)
        row_of[cell.id] = number
    batch_of: dict[tuple[Any, int], int] = {}
    kept = [
        (row_of[cell], batch_of.setdefault((cell, batch), len(batch_of)), *scores)
        for cell, batch, *scores in sentences
        if cell in row_of
    ]
    table = np.array(kept, dtype=np.float64).reshape(len(kept), 2 + len(SCORE_NAMES))
    table = table[np.argsort(table[:, 0], kind="stable")]
    counts = np.bincount(table[:, 0].astype(np.int64), minlength=len(groups))
    estimates = bootstrap(table[:, 2:], counts, table[:, 1].astype(np.int64))
    counted = _counted(row_of, batch_of, batches)
    rows = [
        Row(
            conditions=conditions[number],
            sentences=int(counts[number]),
            cells=len(members[number]),
            scores={name: Estimate(*map(float, estimates[number, place])) for place, name in enumerate(SCORE_NAMES)},
            seconds=_seconds(members[number], int(counts[number])),
            **counted.get(number, {}),
            different=_different(members[number], int(counts[number])),
        )
        for number in range(len(groups))
        if counts[number]
    ]
    return sorted(rows, key=lambda row: _place(row.conditions))


def _counted(
    row_of: Mapping[Any, int], batch_of: Mapping[tuple[Any, int], int], batches: Sequence[tuple[Any, ...]]
) -> dict[int, dict[str, Any]]:
    """Return precision and what else was counted of the rows whose every batch was."""
    missing = Counter(row_of[cell] for cell, _ in batch_of)
    sums: dict[int, list[int]] = {}
    for cell, *values in batches:
        if cell in row_of:
            row = row_of[cell]
            missing[row] -= 1
            sums[row] = [a + b for a, b in zip(sums.get(row, [0] * len(values)), values, strict=True)]
    return {
        row: {"precision": share(exact, returned), "surplus": surplus, "unrepresentable": lost}
        for row, (returned, exact, surplus, lost) in sums.items()
        if not missing[row]
    }


def _different(cells: Sequence[Finished], sentences: int) -> int:
    """Return how many different sentences cells hold, each of which is attacked anew with every seed."""
    places = {(cell.config["dataset"]["name"], place) for cell in cells for place in _places(cell.config["dataset"])}
    return min(sentences, len(places)) if places else sentences


def _places(dataset: Mapping[str, Any]) -> range:
    """Return which sentences of a dataset a cell holds; none if that was not recorded."""
    start, _, stop = (dataset.get("take") or "").partition(":")
    return range(int(start or 0), int(stop)) if stop else range(0)


def _seconds(cells: Sequence[Finished], sentences: int) -> float | None:
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    return sum(known) / sentences if known else None


# --- what stands beside them -----------------------------------------------------------------------------------------


def _utilities(cells: Sequence[Finished], trained: Sequence[tuple[Any, ...]]) -> tuple[Usefulness, ...]:
    measured = {cell: values for cell, *values in trained}
    groups: dict[tuple[str, str], list[list[float | None]]] = {}
    tested: dict[tuple[str, str], list[int]] = {}
    for cell in cells:
        if cell.id in measured:
            tested.setdefault((cell.target, cell.defense), []).append(len(_places(cell.config.get("test") or {})))
            groups.setdefault((cell.target, cell.defense), []).append(measured[cell.id])
    means = {key: [_mean(column) for column in zip(*values, strict=True)] for key, values in groups.items()}
    ordered = sorted(means.items(), key=lambda item: (item[0][0], _defense_place(item[0][1])))
    return tuple(
        Usefulness(
            *key, mcc=mcc, accuracy=accuracy, epsilon=epsilon, cells=len(groups[key]), tested=min(tested[key]) or None
        )
        for key, (mcc, accuracy, epsilon) in ordered
    )


def _beside(row: Row, study: str | None, utilities: Sequence[Usefulness]) -> Row:
    found = row.conditions
    utility = next((u for u in utilities if (u.target, u.defense) == (found["target"], found["defense"])), None)
    published = find_published(study, found)
    return replace(row, published=published, utility=utility)


def strength(defense: str) -> float:
    """Return the last number in a defense's name, which grows with what it takes away; 0 if it has none."""
    numbers = re.findall(r"[\d.]+(?:e[+-]?\d+)?", defense)
    return float(numbers[-1]) if numbers else 0.0


def _place(conditions: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what rows are sorted by: cells finish in any order."""
    attack, defense = conditions["attack"] or "", conditions["defense"] or ""
    known = {name: number for number, name in enumerate(ATTACK_ORDER)}
    scenario = [conditions[name] for name in ("target", "dataset", "batch_size", "dropout", "embeddings", "fedavg")]
    return (
        *((value is not None, _sortable(value)) for value in scenario),
        _defense_place(defense),
        (known.get(attack, len(known)), attack, _key(conditions["preset"]), _key(conditions["settings"])),
        _key(conditions["knowledge"]),
    )


def _defense_place(defense: str) -> tuple[bool, str, float, str]:
    return defense != NO_DEFENSE, defense.partition(":")[0], strength(defense), defense


def _sortable(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _key(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def attack_label(attack: str) -> str:
    """Return an attack's name, marked if it is gradleak's own."""
    return f"{attack} (ours)" if attack in OURS else attack


def in_words(condition: str, value: Any) -> str:  # noqa: ANN401
    """Return what a condition's value says by itself, as in `batch size 4, no dropout, embeddings frozen`."""
    if value is None:
        return f"several {condition.replace('_', ' ')}s"
    if condition == "dropout":
        return f"dropout {value:g}" if value and value is not True else "dropout" if value else "no dropout"
    if condition == "attack":
        return attack_label(value)
    if condition == "settings":
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "the paper's settings"
    if condition == "knowledge":
        return f"knows {', '.join(value) or 'nothing'}"
    if condition == "defense":
        return "no defense" if value == NO_DEFENSE else str(value)
    if condition == "fedavg":
        return "FedSGD" if value == "none" else f"FedAvg {value}"
    if condition in ("batch_size", "embeddings", "preset"):
        return f"{condition.replace('_', ' ')} {value}"
    return str(value)
