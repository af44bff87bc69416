"""Rows: the cells of one configuration merged, with mean scores and bootstrap intervals. Part of an `Overview`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradleak.metrics import SCORE_NAMES, share
from gradleak.studies.report.conditions import CONDITIONS, canonical, row_order
from gradleak.studies.report.intervals import bootstrap
from gradleak.studies.report.published import Published
from gradleak.studies.report.recorded_study import FinishedCell, RecordedStudy, SqlRow, taken
from gradleak.studies.report.utility_rows import UtilityRow


@dataclass(frozen=True)
class Estimate:
    """A mean over sentences and its 95 % interval, from resampled batches."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
        conditions: the value of each of `CONDITIONS`; None where the row's cells differ.
        sentences: number of attacked sentences; one that several seeds attack counts for each of them.
        cells: number of cells.
        scores: each score, from 0 to 100.
        seconds: per sentence.
        published: the paper's figures, if this is one of its settings.
        utility: the utility under the row's defense, if the study measured it.
        different: number of different sentences.
        precision: returned texts that equal a private text of their batch, in per cent of all returned texts; None if
            some cells were recorded before it was counted, or nothing was returned.
        surplus: number of returned texts beyond the sentences of their batches; None as for `precision`.
        unrepresentable: number of sentences that the tokenizer cannot represent in full; None as for `precision`.
    """

    conditions: Mapping[str, Any]
    sentences: int
    cells: int
    scores: Mapping[str, Estimate]
    seconds: float | None
    published: Published | None = None
    utility: UtilityRow | None = None
    different: int = 0
    precision: float | None = None
    surplus: int | None = None
    unrepresentable: int | None = None


@dataclass
class _RowGroups:
    """Cells grouped by some conditions; a group is known by its number."""

    conditions: list[dict[str, Any]] = field(default_factory=list)
    members: list[list[FinishedCell]] = field(default_factory=list)
    of_cell: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Sequence[FinishedCell], by: Sequence[str]) -> _RowGroups:
        """Group cells that agree in the conditions `by`; other conditions are None where the cells differ."""
        groups = cls()
        numbers: dict[str, int] = {}
        for cell in cells:
            found = cell.conditions()
            number = numbers.setdefault(canonical([found[name] for name in by]), len(numbers))
            if number == len(groups.conditions):
                groups.conditions.append(found)
                groups.members.append([])
            shared = groups.conditions[number]
            shared.update({name: None for name in CONDITIONS if shared[name] != found[name]})
            groups.members[number].append(cell)
            groups.of_cell[cell.id] = number
        return groups


def merge_cells(study: RecordedStudy, by: Sequence[str]) -> list[Row]:
    """Merge the attack cells that agree in the conditions `by`, and sort the rows.

    Rows compared with each other are adjacent: attacks, then defenses, then batch sizes.
    """
    groups = _RowGroups.of(study.of_kind("attack"), by)
    group_of = groups.of_cell
    batch_of: dict[tuple[Any, int], int] = {}
    kept = [
        (group_of[cell], batch_of.setdefault((cell, batch), len(batch_of)), *scores)
        for cell, batch, *scores in study.sentences
        if cell in group_of
    ]
    table = np.array(kept, dtype=np.float64).reshape(len(kept), 2 + len(SCORE_NAMES))
    table = table[np.argsort(table[:, 0], kind="stable")]
    counts = np.bincount(table[:, 0].astype(np.int64), minlength=len(groups.members))
    estimates = bootstrap(table[:, 2:], counts, table[:, 1].astype(np.int64))
    counted = _batch_counts(group_of, batch_of, study.batches)
    rows = [
        Row(
            conditions=groups.conditions[number],
            sentences=int(counts[number]),
            cells=len(members),
            scores={name: Estimate(*map(float, estimates[number, place])) for place, name in enumerate(SCORE_NAMES)},
            seconds=_seconds(members, int(counts[number])),
            **counted.get(number, {}),
            different=_different(members, int(counts[number])),
        )
        for number, members in enumerate(groups.members)
        if counts[number]
    ]
    return sorted(rows, key=lambda row: row_order(row.conditions))


def _batch_counts(
    group_of: Mapping[Any, int], batch_of: Mapping[tuple[Any, int], int], batches: Sequence[SqlRow]
) -> dict[int, dict[str, Any]]:
    """Return precision, surplus and unrepresentable sentences of the groups whose every batch was counted."""
    missing = Counter(group_of[cell] for cell, _ in batch_of)
    sums: dict[int, list[int]] = {}
    for cell, *values in batches:
        if cell in group_of:
            group = group_of[cell]
            missing[group] -= 1
            sums[group] = [a + b for a, b in zip(sums.get(group, [0] * len(values)), values, strict=True)]
    return {
        group: {"precision": share(exact, returned), "surplus": surplus, "unrepresentable": lost}
        for group, (returned, exact, surplus, lost) in sums.items()
        if not missing[group]
    }


def _different(cells: Sequence[FinishedCell], sentences: int) -> int:
    """Return the number of different sentences of cells; every seed attacks the same ones again."""
    places = {(cell.config["dataset"]["name"], place) for cell in cells for place in taken(cell.config["dataset"])}
    return min(sentences, len(places)) if places else sentences


def _seconds(cells: Sequence[FinishedCell], sentences: int) -> float | None:
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    return sum(known) / sentences if known else None
