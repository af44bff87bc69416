"""Load a dataset by name: a shipped sample, a split on the hub, or a file."""

from __future__ import annotations

import dataclasses
import os.path
from pathlib import Path

from gradleak.data.dataset import Dataset
from gradleak.data.files import EXTENSIONS, load_file
from gradleak.data.hub import HubSet, load_split
from gradleak.data.shipped import catalogue, find, load_sample
from gradleak.errors import GradleakError, unknown_name


def load_dataset(
    name: str, *, text_column: str | None = None, label_column: str | None = None, skip_bad: bool = False
) -> Dataset:
    """Load a dataset by name or path.

    Args:
        name: A shipped sample (`cola`), a split of its whole set (`cola:train`), a split of any set on
            the Hugging Face hub (`ORG/SET:SPLIT` or `ORG/SET/CONFIG:SPLIT`), or the path of a .txt,
            .csv, .tsv or .jsonl file.
        text_column: The column of the texts, if it does not have a usual name.
        label_column: The column of the labels, if it does not have a usual name.
        skip_bad: Leave out rows of a file without a text or a label and count them in `Dataset.skipped`.

    Raises:
        GradleakError: If there is no such dataset or it cannot be read; one line says why.
    """
    if name in catalogue():
        if text_column or label_column:
            raise GradleakError(f"the sample '{name}' has no columns to choose from; they are for files and hub sets")
        return load_sample(name)
    # Functions of os.path never raise, whatever the name; those of Path may.
    place = os.path.expanduser(name)
    path = Path(place)
    if path.suffix.lower() in EXTENSIONS or os.path.isfile(place):
        return load_file(path, text_column=text_column, label_column=label_column, skip_bad=skip_bad)
    set_name, colon, split = name.rpartition(":")
    if colon:
        return _load_from_hub(name, set_name, split, text_column, label_column)
    if os.path.isdir(place):
        raise GradleakError(f"{name} is a folder; give one of the files in it")
    if path.suffix[1:].isalpha():  # a misspelt path, or a format that is not supported
        return load_file(path)
    if "/" in name:
        raise GradleakError(f"{name} is no file; a set on the Hugging Face hub needs its split: {name}:train")
    raise unknown_name("dataset", name, catalogue())


def _load_from_hub(name: str, set_name: str, split: str, text_column: str | None, label_column: str | None) -> Dataset:
    if Path(set_name).suffix.lower() in EXTENSIONS:
        raise GradleakError(f"a file has no splits: give {set_name} without ':{split}'")
    if "/" in set_name:
        hub_set, source = _any_set(name, set_name, split), None
    else:
        entry = find(set_name)
        if split not in entry.splits:
            raise unknown_name(f"split of {set_name}", split, entry.splits)
        hub_set, source = entry.hub, entry.source
    chosen = dataclasses.replace(
        hub_set,
        text_column=text_column or hub_set.text_column,
        label_column=label_column or hub_set.label_column,
    )
    return load_split(name, chosen, split, source)


def _any_set(name: str, set_name: str, split: str) -> HubSet:
    parts = set_name.split("/")
    if not split or len(parts) > 3 or not all(parts):
        raise GradleakError(f"a set on the Hugging Face hub is ORG/SET:SPLIT or ORG/SET/CONFIG:SPLIT, not '{name}'")
    return HubSet("/".join(parts[:2]), parts[2] if len(parts) == 3 else None)
