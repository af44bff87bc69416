"""The conditions that make a configuration: their names, their order in tables, and their values in words.

Used by every module that merges, sorts or labels rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradleak.errors import unknown_name

CONDITIONS = (
    "attack",
    "preset",
    "settings",
    "target",
    "dataset",
    "batch_size",
    "dropout",
    "embeddings",
    "fedavg",
    "precision",
    "send",
    "clients",
    "defense",
    "knowledge",
)
"""The conditions of a row, in the order of the columns."""

CLIENT_CONDITIONS = ("dropout", "embeddings", "fedavg", "precision", "send", "clients")
CONDITION_GROUPS = {"attack": ("attack", "preset", "settings"), "client": CLIENT_CONDITIONS}
"""Names of `--by` that select several conditions."""

DEFAULTS: Mapping[str, Any] = {
    "preset": "paper",
    "settings": {},
    "precision": "fp32",
    "send": "fp32",
    "clients": 1,
}
"""Values that go without saying where all rows have them."""

NO_DEFENSE = "none"
OURS = ("sieve", "auto", "mosaic", "forest")
"""Attacks of gradleak itself, of no paper; tables and plots mark them."""

ATTACK_ORDER = ("dlg", "tag", "lamp", "lamp-l2l1", "grab", "fet", "edr", "lti", "lti-p", "mosaic", "sieve")
"""From the oldest to the newest, as in the papers' tables; others follow by name."""


def parse_by(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the conditions that names of `--by` select, in the order of the columns; all of them for None."""
    if names is None:
        return CONDITIONS
    chosen: set[str] = set()
    for name in names:
        plain = name.strip().replace("-", "_")
        if plain not in (*CONDITIONS, *CONDITION_GROUPS):
            raise unknown_name("column", name.strip(), {*CONDITIONS, *CONDITION_GROUPS})
        chosen.update(CONDITION_GROUPS.get(plain, (plain,)))
    return tuple(name for name in CONDITIONS if name in chosen)


def attack_label(attack: str) -> str:
    """Return an attack's name, marked if the attack is gradleak's own."""
    return f"{attack} (ours)" if attack in OURS else attack


def in_words(condition: str, value: Any) -> str:  # noqa: ANN401 - a JSON value
    """Return a condition's value in words that need no column title: `batch size 4`, `no dropout`."""
    if value is None:
        return f"several {condition.replace('_', ' ')}s"
    if condition in _WORDS:
        return _WORDS[condition](value)
    if condition in ("batch_size", "embeddings", "preset"):
        return f"{condition.replace('_', ' ')} {value}"
    return str(value)


_WORDS: dict[str, Callable[[Any], str]] = {
    "attack": attack_label,
    "settings": lambda value: ", ".join(f"{key}={item}" for key, item in value.items()) or "the paper's settings",
    "dropout": lambda value: (
        f"dropout {value:g}" if value and value is not True else "dropout" if value else "no dropout"
    ),
    "fedavg": lambda value: "FedSGD" if value == "none" else f"FedAvg {value}",
    "precision": lambda value: f"trained in {value}",
    "send": lambda value: f"sent as {value}",
    "clients": lambda value: "1 client" if value == 1 else f"sum over {value} clients",
    "defense": lambda value: "no defense" if value == NO_DEFENSE else str(value),
    "knowledge": lambda value: f"knows {', '.join(value) or 'nothing'}",
}


def strength(defense: str) -> float:
    """Return the last number of a defense, which grows with its effect; 0 if it has none."""
    numbers = re.findall(r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?", defense)
    return float(numbers[-1]) if numbers else 0.0


def row_order(conditions: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row, independent of the order in which cells finished."""
    attack, defense = conditions["attack"] or "", conditions["defense"] or ""
    known = {name: number for number, name in enumerate(ATTACK_ORDER)}
    scenario = [conditions[name] for name in ("target", "dataset", "batch_size", *CLIENT_CONDITIONS)]
    return (
        *((value is not None, _sortable(value)) for value in scenario),
        defense_order(defense),
        (known.get(attack, len(known)), attack, canonical(conditions["preset"]), canonical(conditions["settings"])),
        canonical(conditions["knowledge"]),
    )


def defense_order(defense: str) -> tuple[bool, str, float, str]:
    """Return the sort key of a defense: none first, then by kind and strength."""
    return defense != NO_DEFENSE, defense.partition(":")[0], strength(defense), defense


def canonical(value: object) -> str:
    """Return a JSON value as text, equal for equal values."""
    return json.dumps(value, sort_keys=True)


def _sortable(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
