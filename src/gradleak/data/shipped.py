"""The samples that the package ships, and where they come from."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from gradleak.data.dataset import Dataset
from gradleak.data.hub import HubSet
from gradleak.errors import unknown_name


@dataclass(frozen=True)
class Shipped:
    """A shipped sample, and the set that it was drawn from."""

    name: str
    description: str
    source: str
    terms: str
    sample: str
    label_names: tuple[str, ...]
    hub: HubSet
    splits: tuple[str, ...]


@functools.cache
def catalogue() -> dict[str, Shipped]:
    """Return the shipped samples by name."""
    return {name: _entry(name, fields) for name, fields in json.loads(_asset("datasets.json")).items()}


def dataset_names() -> list[str]:
    """Return the names of the shipped samples."""
    return sorted(catalogue())


def describe(name: str) -> dict[str, Any]:
    """Return the size, labels, source and terms of a shipped sample, for `gradleak list`.

    Raises:
        GradleakError: If there is no such sample.
    """
    entry = find(name)
    return {
        "name": name,
        "examples": len(load_sample(name)),
        "labels": len(entry.label_names),
        "description": entry.description,
        "source": entry.source,
        "terms": entry.terms,
        "sample": entry.sample,
        "splits": [f"{name}:{split}" for split in entry.splits],
    }


def find(name: str) -> Shipped:
    """Return the catalogue entry of a shipped sample.

    Raises:
        GradleakError: If there is no such sample.
    """
    if name not in catalogue():
        raise unknown_name("dataset", name, dataset_names())
    return catalogue()[name]


def load_sample(name: str) -> Dataset:
    """Load a shipped sample.

    Raises:
        GradleakError: If there is no such sample.
    """
    entry = find(name)
    rows = [line.split("\t") for line in _asset(f"{name}.tsv").split("\n")[1:] if line]
    return Dataset(
        name=name,
        texts=tuple(text for _, text in rows),
        labels=tuple(_number(label, entry.label_names) for label, _ in rows),
        label_names=entry.label_names,
        source=entry.source,
        whole=f"{name}:train",
    )


def _number(label: str, names: tuple[str, ...]) -> int:
    return names.index(label) if label in names else int(label)


def _entry(name: str, fields: dict[str, Any]) -> Shipped:
    hub = fields["hub"]
    return Shipped(
        name=name,
        description=fields["description"],
        source=fields["source"],
        terms=fields["terms"],
        sample=fields["sample"],
        label_names=tuple(fields["label_names"]),
        hub=HubSet(hub["id"], hub["config"], hub["text_column"], hub["label_column"]),
        splits=tuple(hub["splits"]),
    )


def _asset(file: str) -> str:
    return (files("gradleak") / "assets" / "datasets" / file).read_text(encoding="utf-8")
