"""Records made from a study's file: of any study, and the words of an audit whose record has none."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from gradleak.assessment.request import SafetyLine
from gradleak.assessment.trials import FEWEST_FOR_INTERVAL
from gradleak.errors import GradleakError
from gradleak.metrics import SCORE_NAMES
from gradleak.reports.record import MARK, SCHEMA, Record
from gradleak.reports.words import cleaned, mark_matches, sentence_record
from gradleak.studies.records.soundness import DATABASE_ERRORS, check_file
from gradleak.studies.report.conditions import DEFAULTS, in_words
from gradleak.studies.report.recorded_study import FinishedCell, read_address, read_study
from gradleak.studies.report.rows import Row
from gradleak.studies.report.summary import Overview, summarise
from gradleak.version import __version__

SHOWN = 40
Scored = tuple[Any, ...]  # cell, reference, reconstruction, score, …


def study_record(path: Path, *, reveal: bool = False) -> Record:
    """Return the record of a study's file.

    Args:
        path: the file.
        reveal: hold private words and what was read of them.

    Raises:
        GradleakError: if it is no study's file, or no cell has finished.
    """
    overview = summarise(path)
    cells = {cell.id: cell for cell in read_study(path).of_kind("attack")}
    sentences = [row for row in read_sentences(path) if row[0] in cells]
    if not sentences:
        raise GradleakError(f"{path} holds no attacked sentence: there is no leakage to report")
    line = SafetyLine()
    varied = [name for name in overview.varied if name not in DEFAULTS or _differs(overview, name)]
    by_setting: dict[str, list[Scored]] = defaultdict(list)
    for row in sentences:
        by_setting[_key(cells[row[0]].conditions())].append(row)
    settings = [
        _setting(number, row, by_setting[_key(row.conditions)], varied, line)
        for number, row in enumerate(overview.rows)
    ]
    numbers = {_key(row.conditions): number for number, row in enumerate(overview.rows)}
    worst = max(settings, key=lambda setting: setting["scores"]["rougeL"]["mean"])
    record: Record = {
        "gradleak": MARK,
        "schema": SCHEMA,
        "kind": "study",
        "title": f"Study {overview.study or path.name}" + (f": {overview.title}" if overview.title else ""),
        "revealed": reveal,
        "finished": True,
        "line": {"rougeL": line.rouge_l, "words": line.words},
        "verdict": _verdict(settings, worst, line),
        "threat_model": _threat_model(overview),
        "settings": settings,
        "utility": _utility(overview),
        "sentences": _sample(sentences, cells, numbers, reveal),
        "sentences_total": len(sentences),
        "measured": {
            "facts": [["records", path.name], ["finished cells", f"{overview.finished:,}"]],
            "lines": [f"{count} cells failed: {why}" for why, count in overview.failed],
            "commands": [f"gradleak study show {path.name}"],
            "machine": {},
            "version": __version__,
        },
    }
    return cleaned(record)


def reveal_words(record: Record, store: Path) -> Record:
    """Return the record of an audit with the private words that its study's file holds.

    Raises:
        GradleakError: if the file is not there, or is not that of this record.
    """
    if record["revealed"]:
        return record
    if not store.is_file():
        raise GradleakError(f"the words are not in the record; --reveal needs {store.name} of the same audit beside it")
    found: dict[tuple[str, str, float], list[Scored]] = defaultdict(list)
    for row in read_sentences(store):
        truth, guess = mark_matches(row[1], row[2] or "")
        found[truth.pattern, guess.pattern, round(row[3 + SCORE_NAMES.index("rougeL")], 2)].append(row)
    shown = [_with_words(sentence, found) for sentence in record["sentences"]]
    if any(words is None for words in shown):
        raise GradleakError(f"{store} does not hold the sentences of this record; run the audit again with --reveal")
    return {**record, "revealed": True, "sentences": cleaned(shown)}


def _with_words(
    sentence: Mapping[str, Any], found: Mapping[tuple[str, str, float], Sequence[Scored]]
) -> dict[str, Any] | None:
    key = (sentence["matched"] or "", sentence["read_matched"] or "", sentence["scores"]["rougeL"])
    scores = sentence["scores"]
    for row in found.get(key, ()):
        if all(abs(value - scores[name]) < 0.01 for name, value in zip(SCORE_NAMES, row[3:], strict=True)):
            return {**sentence, **sentence_record(row[1], row[2], scores, reveal=True)}
    return None


def read_sentences(path: Path) -> list[Scored]:
    """Return cell, reference, reconstruction and scores of every attacked sentence in a study's file."""
    columns = f"cell_id, reference, reconstruction, {', '.join(SCORE_NAMES)}"
    try:
        with closing(sqlite3.connect(read_address(path), uri=True)) as file:
            check_file(file, path)
            return file.execute(f"SELECT {columns} FROM sentences ORDER BY cell_id, batch, position").fetchall()
    except DATABASE_ERRORS as error:
        raise GradleakError(f"{path} is not a study file ({error})") from None


def _key(conditions: Mapping[str, Any]) -> str:
    return json.dumps(conditions, sort_keys=True, default=str)


def _differs(overview: Overview, name: str) -> bool:
    return any(row.conditions[name] != DEFAULTS[name] for row in overview.rows)


def _setting(
    number: int, row: Row, sentences: Sequence[Scored], varied: Sequence[str], line: SafetyLine
) -> dict[str, Any]:
    table = np.array([scored[3:] for scored in sentences], dtype=np.float64)
    enough = row.sentences >= FEWEST_FOR_INTERVAL
    scores = {
        name: {
            "mean": round(row.scores[name].mean, 2),
            "min": round(float(table[:, place].min()), 2),
            "max": round(float(table[:, place].max()), 2),
            "low": round(row.scores[name].low, 2) if enough else None,
            "high": round(row.scores[name].high, 2) if enough else None,
        }
        for place, name in enumerate(SCORE_NAMES)
    }
    exact = SCORE_NAMES.index("exact")
    whole = [scored for scored in sentences if scored[3 + exact]]
    long = sum(len(scored[1].split()) > line.words for scored in whole)
    utility = row.utility
    return {
        "id": number,
        "axis": "study",
        "name": ", ".join(in_words(name, row.conditions[name]) for name in varied) or "the only setting",
        "ladder": None,
        "place": float(number),
        "label": str(number),
        "batch_size": row.conditions["batch_size"],
        "sentences": row.sentences,
        "scores": scores,
        "exact": len(whole),
        "exact_long": long,
        "below": row.scores["rougeL"].mean < line.rouge_l and not long,
        "utility": None
        if utility is None
        else {"accuracy": utility.accuracy, "mcc": utility.mcc, "perplexity": None, "epsilon": utility.epsilon},
        "error": None,
    }


def _verdict(settings: Sequence[Mapping[str, Any]], worst: Mapping[str, Any], line: SafetyLine) -> dict[str, str]:
    leaking = [setting for setting in settings if not setting["below"]]
    rouge = worst["scores"]["rougeL"]
    detail = (
        f"The worst setting: {worst['name']}; ROUGE-L {rouge['mean']:.0f}, of one sentence up to {rouge['max']:.0f}."
    )
    if not leaking:
        return {
            "level": "holds",
            "sentence": f"All {len(settings)} settings of this study stay below the line.",
            "detail": detail,
        }
    level = "leaks" if any(setting["exact_long"] for setting in leaking) else "partly"
    return {"level": level, "sentence": f"Text leaks in {len(leaking)} of {len(settings)} settings.", "detail": detail}


def _threat_model(overview: Overview) -> dict[str, Any]:
    same = [in_words(name, value) for name, value in overview.same.items() if value not in ({}, "none")]
    return {
        "assumed": [
            "The model's weights and one update; the attacker listens and changes nothing.",
            *([f"The same in all settings: {', '.join(same)}."] if same else []),
        ],
        "not_tested": ["Whatever the study does not name: it was not written to answer for a training setup."],
    }


def _utility(overview: Overview) -> dict[str, Any]:
    tested = [row.tested for row in overview.utilities if row.tested]
    enough = bool(tested) and min(tested) >= 100
    note = "" if enough else "Utility was measured on fewer than 100 test texts, if at all, and is not shown."
    return {"measured": enough, "metric": "accuracy", "note": note, "baseline": None}


def _sample(
    sentences: Sequence[Scored], cells: Mapping[Any, FinishedCell], numbers: Mapping[str, int], reveal: bool
) -> list[dict[str, Any]]:
    """Return the worst sentences, at most a few of each setting."""
    place = 3 + SCORE_NAMES.index("rougeL")
    taken: dict[int, int] = defaultdict(int)
    most = max(1, SHOWN // max(1, len(numbers)))
    chosen: list[tuple[int, Scored]] = []
    for row in sorted(sentences, key=lambda row: -row[place]):
        number = numbers[_key(cells[row[0]].conditions())]
        if taken[number] < most and len(chosen) < SHOWN:
            taken[number] += 1
            chosen.append((number, row))
    return [
        {
            "setting": number,
            **sentence_record(row[1], row[2], dict(zip(SCORE_NAMES, row[3:], strict=True)), reveal=reveal),
        }
        for number, row in chosen
    ]
