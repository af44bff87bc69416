"""Load splits of sets on the Hugging Face hub, with the optional package `datasets`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gradleak.data.columns import find_columns
from gradleak.data.dataset import Dataset
from gradleak.data.labels import label_as_text, number_labels
from gradleak.errors import GradleakError, missing_extra


@dataclass(frozen=True)
class HubSet:
    """The id, configuration and columns of a set on the hub; columns that are None are found by their names."""

    id: str
    config: str | None = None
    text_column: str | None = None
    label_column: str | None = None

    def __str__(self) -> str:
        return self.id if self.config is None else f"{self.id}, {self.config}"


def load_split(name: str, hub_set: HubSet, split: str, source: str | None = None) -> Dataset:
    """Load a whole split.

    Examples without text are left out, and so are those without a label. If no example has a label
    (the test splits of GLUE), all are kept and the dataset has no labels.

    Args:
        name: The name that the user gave.
        hub_set: The set, its configuration and its columns.
        split: The split.
        source: Who made the set; the hub if None.

    Raises:
        GradleakError: If `datasets` is not installed, or the split cannot be loaded.
    """
    table = _fetch(name, hub_set, split)
    text_column, label_column = find_columns(
        list(table.column_names),
        lambda column: _texts_of(table, column),
        name,
        text_column=hub_set.text_column,
        label_column=hub_set.label_column,
    )
    texts = [value.strip() if isinstance(value, str) else "" for value in table[text_column]]
    class_names = getattr(table.features[label_column], "names", None) if label_column else None
    labels = _labels(table[label_column], class_names) if label_column else [None] * len(texts)
    labelled = any(label is not None for label in labels)
    kept = [(t, n) for t, n in zip(texts, labels, strict=True) if t and (n is not None or not labelled)]
    if not kept:
        raise GradleakError(f"{name} has no texts in column '{text_column}'")
    numbers, names = _numbered([n for _, n in kept if n is not None], class_names, name)
    where = source or f"Hugging Face hub: {hub_set}"
    return Dataset(name, tuple(text for text, _ in kept), numbers, names, where)


def _fetch(name: str, hub_set: HubSet, split: str) -> Any:  # noqa: ANN401 (a datasets.Dataset)
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "hub", f"loading '{name}' from the Hugging Face hub") from None
    # Releases before 4 ask on standard input whether to run a set's own code; those after it have no such code.
    if hasattr(datasets, "config"):
        datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False
    try:
        return datasets.load_dataset(hub_set.id, name=hub_set.config, split=split)
    except Exception as error:  # the package and the network raise errors of many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise GradleakError(f"cannot load '{name}' ({hub_set}) from the Hugging Face hub: {reason}") from error


def _texts_of(table: Any, column: str) -> Iterable[object]:  # noqa: ANN401 (a datasets.Dataset)
    # Reading a column of another type may decode images or sound.
    is_text = getattr(table.features[column], "dtype", None) in ("string", "large_string")
    return table[column] if is_text else ()


def _labels(values: Iterable[object], class_names: list[str] | None) -> list[str | None]:
    labels = [label_as_text(value) for value in values]
    # With named classes the hub writes -1 where a label is withheld.
    return [None if class_names and label == "-1" else label for label in labels]


def _numbered(
    labels: list[str], class_names: list[str] | None, name: str
) -> tuple[tuple[int, ...], tuple[str, ...]] | tuple[None, None]:
    if not labels:
        return None, None
    if class_names:
        return tuple(int(label) for label in labels), tuple(class_names)
    return number_labels(labels, name)
