"""`gradleak list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

import typer

from gradleak.cli.options.parse import check_output
from gradleak.cli.options.shared import JsonFile, Quiet
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.screen import Screen
from gradleak.errors import unknown_name

Row = dict[str, Any]
Kind = Annotated[str, typer.Argument(metavar="attacks|models|datasets|defenses|studies", help="What to list.")]


def show(kind: Kind, json_file: JsonFile = None, quiet: Quiet = False) -> None:
    """List attacks, models, datasets, defenses or ready studies, with what one wants to know before using them."""
    if kind not in LISTS:
        raise unknown_name("list", kind, LISTS)
    check_output(json_file)
    rows = LISTS[kind]()
    screen = Screen(quiet)
    if quiet:
        for row in rows:
            screen.result(row["name"])
    else:
        screen.table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
    write_json(json_file, rows)


def attacks() -> list[Row]:
    """One row per attack."""
    from gradleak.attacks import ATTACKS, DEFAULT_ATTACK

    return [
        {
            "name": name,
            "default": name == DEFAULT_ATTACK,
            "paper": kind.paper,
            "needs": list(kind.needs),
            "assumes": list(kind.assumes),
            "presets": list(kind.presets),
            "default preset": kind.default_preset(),
            "settings": {field.name: field.default for field in fields(kind)},
        }
        for name, kind in sorted(ATTACKS.items())
    ]


def models() -> list[Row]:
    """One row per model that has a name here."""
    from importlib.util import find_spec

    from gradleak.targets import MODELS

    return [
        {
            "name": name,
            "description": entry.description,
            "weights": "embedded"
            if name == "tiny"
            else "from the seed"
            if not entry.has_checkpoint
            else "installed package"
            if entry.package and find_spec(entry.package)
            else f"hub: {entry.hub_id}",
        }
        for name, entry in MODELS.items()
    ]


def datasets() -> list[Row]:
    """One row per shipped sample."""
    from gradleak.data import dataset_names, describe

    columns = ("name", "examples", "labels", "description", "source", "terms", "splits")
    described = [describe(name) for name in dataset_names()]
    return [{column: row[column] for column in columns} for row in described]


def defenses() -> list[Row]:
    """One row per defense."""
    from gradleak.defenses import DEFENSES

    return [
        {"name": name, "value": kind.takes or "none", "summary": kind.summary}
        for name, kind in sorted(DEFENSES.items())
    ]


def studies() -> list[Row]:
    """One row per ready study."""
    from gradleak.studies import load_study, ready_studies

    loaded = [load_study(name) for name in ready_studies()]
    return [
        {"name": study.name, "title": study.title, "not available yet": sorted(set(study.unavailable))}
        for study in loaded
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "attacks": attacks,
    "models": models,
    "datasets": datasets,
    "defenses": defenses,
    "studies": studies,
}


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
