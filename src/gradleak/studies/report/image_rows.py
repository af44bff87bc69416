"""Image rows: the cells of one configuration of an image model merged, with mean scores. Part of an `Overview`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradleak.studies.report.conditions import canonical, defense_order
from gradleak.studies.report.intervals import bootstrap
from gradleak.studies.report.published import Published, find_published
from gradleak.studies.report.recorded_study import IMAGE_SCORES, FinishedCell, RecordedStudy
from gradleak.studies.report.rows import Estimate

IMAGE_CONDITIONS = ("attack", "preset", "settings", "target", "dataset", "batch_size", "defense", "knowledge")
"""The conditions of an image row, in the order of the columns; a part of `CONDITIONS`."""
ATTACKS_IN_ORDER = ("ig", "gi-gip", "lti", "layerwise")


@dataclass(frozen=True)
class ImageRow:
    """One configuration.

    Attributes:
        conditions: the value of each of `IMAGE_CONDITIONS`; None where the row's cells differ.
        images: number of attacked images.
        cells: number of cells.
        scores: MSE, PSNR in dB, SSIM and LPIPS, as far as they were computed for all images.
        seconds: per image.
        published: the paper's figures, if this is one of its settings.
    """

    conditions: Mapping[str, Any]
    images: int
    cells: int
    scores: Mapping[str, Estimate]
    seconds: float | None
    published: Published | None = None


def image_rows(study: RecordedStudy, by: Sequence[str]) -> tuple[ImageRow, ...]:
    """Merge the cells of images that agree in the conditions `by`, sorted by defense and attack."""
    chosen = [name for name in IMAGE_CONDITIONS if name in by]
    groups: dict[str, list[FinishedCell]] = {}
    for cell in study.of_kind("images"):
        found = cell.image_conditions()
        groups.setdefault(canonical([found[name] for name in chosen]), []).append(cell)
    scores: dict[Any, list[tuple[Any, ...]]] = {}
    for cell_id, *values in study.images:
        scores.setdefault(cell_id, []).append(tuple(values))
    name = study.facts.get("name") or None
    rows = [_row(cells, scores, name) for cells in groups.values()]
    return tuple(sorted((row for row in rows if row.images), key=lambda row: _order(row.conditions)))


def _row(cells: Sequence[FinishedCell], scores: Mapping[Any, list[tuple[Any, ...]]], study: str | None) -> ImageRow:
    shared = cells[0].image_conditions()
    for cell in cells[1:]:
        other = cell.image_conditions()
        shared.update({name: None for name in IMAGE_CONDITIONS if shared[name] != other[name]})
    batches: dict[tuple[Any, int], int] = {}
    values = [
        (batches.setdefault((cell.id, batch), len(batches)), *own)
        for cell in cells
        for batch, *own in scores.get(cell.id, ())
    ]
    table = np.array(values, dtype=np.float64).reshape(len(values), 1 + len(IMAGE_SCORES))  # None becomes NaN
    found = bootstrap(table[:, 1:], np.array([len(table)]), table[:, 0].astype(np.int64))[0]
    known = {name: Estimate(*map(float, found[place])) for place, name in enumerate(IMAGE_SCORES)}
    seconds = [cell.seconds for cell in cells if cell.seconds is not None]
    return ImageRow(
        conditions=shared,
        images=len(table),
        cells=len(cells),
        scores={name: estimate for name, estimate in known.items() if not np.isnan(estimate.mean)},
        seconds=sum(seconds) / len(table) if seconds and len(table) else None,
        published=find_published(study, shared),
    )


def _order(conditions: Mapping[str, Any]) -> tuple[Any, ...]:
    attack = conditions["attack"] or ""
    place = ATTACKS_IN_ORDER.index(attack) if attack in ATTACKS_IN_ORDER else len(ATTACKS_IN_ORDER)
    others = [canonical(conditions[name]) for name in ("target", "dataset", "batch_size")]
    chosen = [canonical(conditions[name]) for name in ("preset", "settings", "knowledge")]
    return (*others, place, attack, *chosen, defense_order(conditions["defense"] or ""))
