"""The papers' own figures, for comparison with measured rows.

`published.json` holds for each ready study the source of its figures, the paper's main model, the conditions that are
the same in all rows, and the rows: conditions, by the names of `CONDITIONS`, and figures. They are shown with a
measured row if all conditions agree, the preset `paper` among them. The model may differ, and is named with the
figures. A published row without an attack belongs to a training under a defense: it is shown with the training, and
with every attack under that defense.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

FIGURES = ("rouge1", "rouge2", "rougeL", "exact", "token_accuracy", "mcc", "epsilon", "seconds")
IMAGE_FIGURES = ("mse", "psnr", "lpips")


@dataclass(frozen=True)
class Published:
    """One row of a paper's table.

    Attributes:
        source: paper and table.
        target: the attacked model.
        conditions: what a measured row must agree in; the model may differ.
        figures: scores from 0 to 100, MCC from -1 to 1, the privacy loss ε, seconds per sentence; of images MSE, PSNR
            in dB and LPIPS.
    """

    source: str
    target: str
    conditions: Mapping[str, Any]
    figures: Mapping[str, float]

    def fits(self, conditions: Mapping[str, Any]) -> bool:
        """Return whether a row of these conditions is comparable, whatever its model."""
        return all(conditions.get(name) == value for name, value in self.conditions.items())


@cache
def published_rows(study: str | None) -> tuple[Published, ...]:
    """Return the paper's rows for a ready study; none for any other study."""
    entry = _content().get(study or "")
    return () if entry is None else tuple(_row(entry, row) for row in entry["rows"])


def find_published(study: str | None, conditions: Mapping[str, Any]) -> Published | None:
    """Return the published row that is comparable with a measured one: of its model, else of the paper's main one."""
    fitting = {row.target: row for row in published_rows(study) if row.fits(conditions)}
    main = _content()[study]["target"] if study in _content() else None
    return fitting.get(conditions.get("target") or "") or fitting.get(main or "")


def _row(entry: Mapping[str, Any], row: Mapping[str, Any]) -> Published:
    whole: dict[str, Any] = entry["same"] | row
    if "attack" in whole:
        whole = {"preset": "paper", "settings": {}} | whole
    return Published(
        source=entry["paper"],
        target=whole["target"],
        conditions={name: value for name, value in whole.items() if name not in (*FIGURES, *IMAGE_FIGURES, "target")},
        figures={name: whole[name] for name in (*FIGURES, *IMAGE_FIGURES) if name in whole},
    )


@cache
def _content() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
