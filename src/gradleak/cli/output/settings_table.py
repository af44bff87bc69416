"""Tables of settings: name, default, values in presets, allowed values, unit, meaning and origin.

Used by `gradleak list attacks NAME` and by the page docs/settings.md; works for any dataclass with settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.settings import Setting, settings_of

COLUMNS = ("setting", "default", "presets", "allowed", "meaning")
_TYPES: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple[int, ...]: "whole numbers",
}


def settings_record(kind: type) -> list[dict[str, Any]]:
    """Return the settings of a class for JSON, in the order of their declaration."""
    presets: Mapping[str, Mapping[str, Any]] = getattr(kind, "presets", {})
    return [
        {
            "name": setting.name,
            "default": None if setting.default is dataclasses.MISSING else setting.default,
            "presets": {preset: values[setting.name] for preset, values in presets.items() if setting.name in values},
            "allowed": allowed(setting),
            "unit": setting.unit,
            "meaning": setting.meaning,
            "paper": setting.paper,
        }
        for setting in settings_of(kind).values()
    ]


def settings_table(kind: type) -> tuple[list[str], list[list[str]]]:
    """Return headers and rows of the settings of a class; columns without any entry are left out."""
    rows = [
        [
            record["name"],
            _default(record),
            ", ".join(f"{preset}: {value_text(value)}" for preset, value in record["presets"].items()),
            record["allowed"],
            _meaning(settings_of(kind)[record["name"]]),
        ]
        for record in settings_record(kind)
    ]
    return _without_empty_columns(COLUMNS, rows)


def allowed(setting: Setting) -> str:
    """Return the allowed values in words, such as `whole number, at least 1`."""
    words = setting.range if setting.choices else ", ".join(filter(None, [_TYPES.get(setting.kind, ""), setting.range]))
    return f"{words}, or none" if setting.optional else words


def value_text(value: object) -> str:
    """Return a value as `--set` takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, tuple):
        return ",".join(map(value_text, value))
    return str(value)


def _default(record: Mapping[str, Any]) -> str:
    """Return the default value with its unit."""
    text = value_text(record["default"])
    return text if record["default"] is None else " ".join(filter(None, [text, record["unit"]]))


def _meaning(setting: Setting) -> str:
    """Return the meaning, and what the paper says about the value in parentheses."""
    return f"{setting.meaning} ({setting.origin})" if setting.origin else setting.meaning


def _without_empty_columns(headers: Sequence[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    kept = [place for place in range(len(headers)) if any(row[place] for row in rows)]
    return [headers[place] for place in kept], [[row[place] for place in kept] for row in rows]
