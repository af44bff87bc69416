"""`gradleak list`: list attacks, models, datasets, defenses and studies, or show all settings of one attack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.options.parse import check_output
from gradleak.cli.options.shared import JsonFile, Quiet
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.screen import Screen
from gradleak.errors import GradleakError, unknown_name

Row = dict[str, Any]
Kind = Annotated[
    str, typer.Argument(metavar="attacks|image-attacks|models|datasets|defenses|studies", help="What to list.")
]
Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="An attack, to show all its settings.", show_default=False)
]


def show(kind: Kind, name: Name = None, json_file: JsonFile = None, quiet: Quiet = False) -> None:
    """List attacks, models, datasets, defenses or ready studies, with what one wants to know before using them.

    With the name of an attack, show each of its settings: default, values in presets, allowed values, meaning.
    """
    if kind not in LISTS:
        raise unknown_name("list", kind, LISTS)
    if name is not None and kind == "image-attacks":
        _show_image_attack(name, Screen(quiet))
        return
    if name is not None and kind != "attacks":
        raise GradleakError(f"only attacks have settings to show: give gradleak list {kind} without '{name}'")
    check_output(json_file)
    screen = Screen(quiet, json_file)
    if name is not None:
        _show_attack(name, screen, json_file)
        return
    rows = LISTS[kind]()
    if quiet:
        for row in rows:
            screen.result(row["name"])
    else:
        screen.table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows])
    write_json(json_file, rows)


def _show_attack(name: str, screen: Screen, json_file: Path | None) -> None:
    from gradleak.attacks import find_attack
    from gradleak.cli.output.settings_table import settings_record, settings_table

    kind = find_attack(name)
    row = next(row for row in attacks() if row["name"] == name)
    settings = settings_record(kind)
    if screen.quiet:
        for setting in settings:
            screen.result(setting["name"])
    facts = [(key, text) for key, value in row.items() if key != "settings" and (text := _cell(value))]
    screen.overview(facts)
    screen.table(*settings_table(kind))
    screen.line("Give a setting as --set NAME=VALUE.")
    write_json(json_file, row | {"settings": settings})


def _show_image_attack(name: str, screen: Screen) -> None:
    from gradleak.cli.output.settings_table import settings_table
    from gradleak.vision.attacks import find_image_attack

    kind = find_image_attack(name)
    screen.overview([("name", name), ("paper", kind.paper), ("presets", ", ".join(kind.presets))])
    screen.table(*settings_table(kind))


def image_attacks() -> list[Row]:
    """Return one row for each attack on images."""
    from gradleak.vision.attacks import IMAGE_ATTACKS

    return [
        {"name": name, "paper": kind.paper, "presets": list(kind.presets), "default preset": kind.default_preset()}
        for name, kind in sorted(IMAGE_ATTACKS.items())
    ]


def attacks() -> list[Row]:
    """Return one row for each attack."""
    from gradleak.attacks import ATTACKS, DEFAULT_ATTACK
    from gradleak.settings import settings_of

    return [
        {
            "name": name,
            "default": name == DEFAULT_ATTACK,
            "paper": kind.paper,
            "needs": list(kind.needs),
            "assumes": list(kind.assumes),
            "presets": list(kind.presets),
            "default preset": kind.default_preset(),
            "settings": {setting.name: setting.default for setting in settings_of(kind).values()},
        }
        for name, kind in sorted(ATTACKS.items())
    ]


def models() -> list[Row]:
    """Return one row for each model that has a name here."""
    from gradleak.targets import MODELS

    return [
        {
            "name": name,
            "description": entry.description,
            "weights": "embedded" if name == "tiny" else entry.where,
        }
        for name, entry in MODELS.items()
    ]


def datasets() -> list[Row]:
    """Return one row for each shipped sample."""
    from gradleak.data import dataset_names, describe

    columns = ("name", "examples", "labels", "description", "source", "terms", "splits")
    described = [describe(name) for name in dataset_names()]
    return [{column: row[column] for column in columns} for row in described]


def defenses() -> list[Row]:
    """Return one row for each defense."""
    from gradleak.defenses import DEFENSES

    return [
        {"name": name, "value": kind.takes or "none", "summary": kind.summary}
        for name, kind in sorted(DEFENSES.items())
    ]


def studies() -> list[Row]:
    """Return one row for each ready study."""
    from gradleak.studies import load_study, ready_studies

    loaded = [load_study(name) for name in ready_studies()]
    return [
        {"name": study.name, "title": study.title, "not available yet": sorted(set(study.unavailable))}
        for study in loaded
    ]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "attacks": attacks,
    "image-attacks": image_attacks,
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
