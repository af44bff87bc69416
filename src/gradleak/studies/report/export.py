"""An overview for other programs: JSON, CSV and LaTeX. Used by `study show`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gradleak.printable import escaped_json
from gradleak.studies.report.conditions import CONDITIONS, OURS
from gradleak.studies.report.image_rows import ImageRow
from gradleak.studies.report.published import FIGURES, IMAGE_FIGURES, Published
from gradleak.studies.report.rows import Row
from gradleak.studies.report.summary import Overview
from gradleak.studies.report.tables import constants, notes, plain, text_tables
from gradleak.studies.report.utility_rows import UtilityRow

SCHEMA = 1
COUNTED = ("precision", "surplus", "unrepresentable")
UTILITY = ("target", "defense", "mcc", "accuracy", "epsilon", "cells", "tested")


def as_record(overview: Overview) -> dict[str, Any]:
    """Return the overview as JSON values; schema 1, whose keys are never renamed."""
    return {
        "schema": SCHEMA,
        "study": overview.study,
        "title": overview.title,
        "finished": overview.finished,
        "failed": [{"error": error, "cells": cells} for error, cells in overview.failed],
        "stale": [{"why": why, "cells": cells} for why, cells in overview.stale],
        "old": [{"why": why, "cells": cells} for why, cells in overview.old],
        "same": overview.same,
        "rows": [_row_record(row) for row in overview.rows],
        "utility": [{**_utility_record(u), "published": _published_record(u.published)} for u in overview.utilities],
        "images": [_image_record(row) for row in overview.images],
    }


def to_json(overview: Overview) -> str:
    """Return the overview as JSON text."""
    return escaped_json(json.dumps(as_record(overview), indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def to_csv(overview: Overview) -> str:
    """Return the overview as CSV text: a line for each row, for each utility that no row has, for each image row."""
    rows = [_flat_row(row) for row in overview.rows]
    rows += [
        {**dict.fromkeys(CONDITIONS, None), **_utility_record(utility), **_flat_published(utility.published)}
        for utility in overview.utilities_alone
    ]
    rows += [_flat_image_row(row) for row in overview.images]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_latex(overview: Overview) -> str:
    """Return the overview as LaTeX tables with booktabs rules, and the notes as comments."""
    lines = [f"% {overview.title or overview.study or 'a study'}", f"% everywhere: {constants(overview)}"]
    lines += [f"% {line}" for line in notes(overview)]
    for table in text_tables(overview, digits=1):
        lines += [
            f"\\begin{{tabular}}{{{'l' * table.texts}{'r' * (len(table.titles) - table.texts)}}}",
            "\\toprule",
            " & ".join(map(_latex, table.titles)) + " \\\\",
            "\\midrule",
            *(" & ".join(map(_latex, row)) + " \\\\" for row in table.cells),
            "\\bottomrule",
            "\\end{tabular}",
        ]
    return "\n".join(lines) + "\n"


def _row_record(row: Row) -> dict[str, Any]:
    return {
        **row.conditions,
        "ours": row.conditions["attack"] in OURS,
        "sentences": row.sentences,
        "cells": row.cells,
        **{name: asdict(score) for name, score in row.scores.items()},
        **{name: getattr(row, name) for name in COUNTED},
        "seconds_per_sentence": row.seconds,
        "published": _published_record(row.published),
        "utility": None if row.utility is None else _utility_record(row.utility),
    }


def _flat_row(row: Row) -> dict[str, Any]:
    """Return a row for CSV: one value per column, the same columns in every study."""
    record: dict[str, Any] = {name: plain(value) for name, value in row.conditions.items()}
    record |= {"sentences": row.sentences, "cells": row.cells}
    for name, score in row.scores.items():
        record |= {name: score.mean, f"{name}_low": score.low, f"{name}_high": score.high}
    record["seconds_per_sentence"] = row.seconds
    record |= {name: getattr(row.utility, name, None) for name in ("mcc", "accuracy", "epsilon")}
    return record | _flat_published(row.published) | {name: getattr(row, name) for name in COUNTED}


def _image_record(row: ImageRow) -> dict[str, Any]:
    return {
        **row.conditions,
        "images": row.images,
        "cells": row.cells,
        **{name: asdict(score) for name, score in row.scores.items()},
        "seconds_per_image": row.seconds,
        "published": _published_record(row.published),
    }


def _flat_image_row(row: ImageRow) -> dict[str, Any]:
    record: dict[str, Any] = {name: plain(value) for name, value in row.conditions.items()}
    record |= {"images": row.images, "cells": row.cells}
    for name, score in row.scores.items():
        record |= {name: score.mean, f"{name}_low": score.low, f"{name}_high": score.high}
    figures: Mapping[str, float] = row.published.figures if row.published else {}
    return record | {"seconds_per_image": row.seconds, **{f"published_{n}": figures.get(n) for n in IMAGE_FIGURES}}


def _published_record(published: Published | None) -> dict[str, Any] | None:
    return None if published is None else {"source": published.source, "target": published.target, **published.figures}


def _flat_published(published: Published | None) -> dict[str, Any]:
    record: dict[str, Any] = {"published_source": getattr(published, "source", None)}
    record |= {"published_target": getattr(published, "target", None)}
    figures: Mapping[str, float] = published.figures if published else {}
    return record | {f"published_{name}": figures.get(name) for name in FIGURES}


def _utility_record(utility: UtilityRow) -> dict[str, Any]:
    """Return a utility row without the paper's figures."""
    return {name: getattr(utility, name) for name in UTILITY}


def _latex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "–": "--", "ε": "$\\varepsilon$", "σ": "$\\sigma$"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(special.get(sign, sign) for sign in text)
