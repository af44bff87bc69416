"""Summary of a study's records: one row per configuration.

    overview = summarise("quick.db")
    overview.rows[0].scores["rouge1"].mean

Cells that differ only in seed, or in the part of a dataset that they hold, are one configuration. Each score has a
95 % bootstrap interval that resamples whole batches, because the sentences of a batch are attacked together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gradleak.errors import GradleakError
from gradleak.studies.report.conditions import CONDITIONS, canonical, parse_by
from gradleak.studies.report.image_rows import ImageRow, image_rows
from gradleak.studies.report.published import find_published
from gradleak.studies.report.recorded_study import RecordedStudy, read_study
from gradleak.studies.report.rows import Row, merge_cells
from gradleak.studies.report.utility_rows import UtilityRow, utility_rows


@dataclass(frozen=True)
class Overview:
    """The summary of a study.

    Attributes:
        study: its name, if the file has it.
        title: its subject.
        by: the conditions that distinguish rows.
        rows: one per configuration, sorted.
        utilities: one per model and defense.
        finished: number of finished cells.
        failed: every error and the number of cells that ended with it, the most frequent first.
        stale: cells left out because a run has found them stale: each reason, and their number.
        old: cells shown although the next run will find them stale: each reason, and their number.
        images: one per configuration of an image model, sorted.
    """

    study: str | None
    title: str
    by: tuple[str, ...]
    rows: tuple[Row, ...]
    utilities: tuple[UtilityRow, ...]
    finished: int
    failed: tuple[tuple[str, int], ...]
    stale: tuple[tuple[str, int], ...] = ()
    old: tuple[tuple[str, int], ...] = ()
    images: tuple[ImageRow, ...] = ()

    @cached_property
    def same(self) -> dict[str, Any]:
        """The conditions that are the same in all rows, of images where there are no others."""
        rows: Sequence[Row | ImageRow] = self.rows or self.images
        return {
            name: rows[0].conditions[name]
            for name in CONDITIONS
            if rows
            and name in rows[0].conditions
            and len({canonical(row.conditions[name]) for row in rows} | {canonical(None)}) == 2
        }

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The conditions that distinguish rows, without those that are the same in all of them."""
        same = self.same
        return tuple(name for name in self.by if name not in same)

    @cached_property
    def utilities_alone(self) -> tuple[UtilityRow, ...]:
        """The utilities under defenses that no row has."""
        shown = [row.utility for row in self.rows if row.utility]
        return tuple(utility for utility in self.utilities if utility not in shown)


def summarise(path: str | Path, by: Sequence[str] | None = None) -> Overview:
    """Read a study's file and merge its cells to rows.

    Args:
        path: the SQLite file that `study run` writes.
        by: the conditions that distinguish rows; all of them by default.

    Raises:
        GradleakError: if there is no such file, it is not one of study records, or no cell in it has finished.
    """
    chosen = parse_by(by)
    study = read_study(Path(path))
    if not study.cells:
        raise GradleakError(f"{path} holds no finished cell yet{_why_empty(study)}")
    name = study.facts.get("name") or None
    utilities = utility_rows(study)
    return Overview(
        study=name,
        title=study.facts.get("title") or "",
        by=chosen,
        rows=tuple(_complete(row, name, utilities) for row in merge_cells(study, chosen)),
        utilities=utilities,
        finished=len(study.cells),
        failed=tuple(study.errors.most_common()),
        stale=tuple(study.stale.most_common()),
        old=tuple(Counter(filter(None, (cell.old for cell in study.cells))).most_common()),
        images=image_rows(study, chosen),
    )


def _why_empty(study: RecordedStudy) -> str:
    errors, stale = study.errors, study.stale
    failed = f"; {sum(errors.values())} failed, with: {errors.most_common(1)[0][0]}" if errors else ""
    return "".join(f"; {count} stale ({why})" for why, count in stale.most_common()) + failed


def _complete(row: Row, study: str | None, utilities: Sequence[UtilityRow]) -> Row:
    """Return the row with the paper's figures and the utility under its defense."""
    found = row.conditions
    utility = next((u for u in utilities if (u.target, u.defense) == (found["target"], found["defense"])), None)
    return replace(row, published=find_published(study, found), utility=utility)
