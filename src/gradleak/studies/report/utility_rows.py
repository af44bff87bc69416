"""Utility rows: the trainings of one model under one defense, averaged. Part of an `Overview`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.studies.report.conditions import defense_order
from gradleak.studies.report.published import Published, find_published
from gradleak.studies.report.recorded_study import RecordedStudy, taken


@dataclass(frozen=True)
class UtilityRow:
    """Utility of a model that is trained under a defense, averaged over cells.

    Attributes:
        target: the model.
        defense: applied to its updates.
        mcc: Matthews' correlation, from -1 to 1.
        accuracy: fraction of correct predictions, from 0 to 1.
        epsilon: the privacy loss, if the defense bounds it.
        cells: number of trainings.
        tested: number of test sentences, the smallest of all trainings; None if it was not recorded.
        published: the paper's figures, if this is one of its settings.
    """

    target: str
    defense: str
    mcc: float | None
    accuracy: float | None
    epsilon: float | None
    cells: int
    tested: int | None = None
    published: Published | None = None


def utility_rows(study: RecordedStudy) -> tuple[UtilityRow, ...]:
    """Average the trainings of each model and defense, sorted by both."""
    measured = {cell: values for cell, *values in study.trainings}
    groups: dict[tuple[str, str], list[list[float | None]]] = {}
    tested: dict[tuple[str, str], list[int]] = {}
    for cell in study.of_kind("utility"):
        if cell.id in measured:
            tested.setdefault((cell.target, cell.defense), []).append(len(taken(cell.config.get("test") or {})))
            groups.setdefault((cell.target, cell.defense), []).append(measured[cell.id])
    name = study.facts.get("name") or None
    rows = []
    for target, defense in sorted(groups, key=lambda key: (key[0], defense_order(key[1]))):
        values = groups[target, defense]
        mcc, accuracy, epsilon = (_mean(column) for column in zip(*values, strict=True))
        smallest = min(tested[target, defense]) or None
        published = find_published(name, {"target": target, "defense": defense})
        rows.append(UtilityRow(target, defense, mcc, accuracy, epsilon, len(values), smallest, published))
    return tuple(rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
