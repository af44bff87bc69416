"""Map the labels of a dataset to the classes of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradleak.data.dataset import Dataset
from gradleak.data.labels import plain_number
from gradleak.errors import GradleakError

HOW = {
    "given": "as given",
    "names": "by the names of the model's classes",
    "order": "by the order of the labels; --labels a=0,b=1,… says otherwise",
}
SHOWN = 8  # labels listed in a message


@dataclass(frozen=True)
class LabelMapping:
    """The class of each label.

    Attributes:
        classes: class by label, labels as in the data.
        by: how it was found: `given` by the user, by the `names` of the model's classes, or by `order`.
    """

    classes: Mapping[str, int]
    by: Literal["given", "names", "order"]

    def __str__(self) -> str:
        pairs = [f"{label} → {number}" for label, number in self.classes.items()]
        more = f" and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
        return f"{', '.join(pairs[:SHOWN])}{more} ({HOW[self.by]})"

    def covers(self, dataset: Dataset) -> bool:
        """Return whether every label of a dataset has a class."""
        names = dataset.label_names or ()
        return all(names[number] in self.classes for number in dataset.used)

    def __call__(self, dataset: Dataset) -> tuple[int, ...] | None:
        """Return the classes of a dataset's examples; None if it has no labels.

        Raises:
            GradleakError: If a label has no class.
        """
        if dataset.labels is None or dataset.label_names is None:
            return None
        names = [dataset.label_names[label] for label in dataset.labels]
        missing = next((name for name in names if name not in self.classes), None)
        if missing is not None:
            raise GradleakError(f"label '{missing}' of {dataset.name} has no class: {self}; map it, too")
        return tuple(self.classes[name] for name in names)


def classes_needed(dataset: Dataset, given: Mapping[str, int] | None = None) -> int | None:
    """Return the number of classes that a new classifier needs for a dataset; None if it has no labels."""
    if dataset.labels is None or dataset.label_names is None:
        return None
    if given:
        return max(given.values()) + 1
    return len(dataset.label_names) if _numbered_from_zero(dataset) else len(dataset.used)


def map_labels(
    dataset: Dataset,
    count: int,
    class_names: Mapping[str, int] | None = None,
    given: Mapping[str, int] | None = None,
    *,
    remedy: str = "give --labels a=0,b=1,…",
) -> LabelMapping | None:
    """Map each label of a dataset to a class of a model; None if the dataset has no labels.

    A given mapping takes precedence; then the names of the model's classes, ignoring case; then the order of the
    labels, by size if they are numbers. Whole numbers from 0 up are used as class numbers, if the model has as many.

    Args:
        dataset: the data, or a part of it: the labels of the whole dataset are mapped.
        count: number of classes of the model.
        class_names: class by name, from the model's config.
        given: class by label, from the user.
        remedy: what to do if the labels do not fit, for the error message.

    Raises:
        GradleakError: If there are more labels than classes, or if names match in part.
    """
    if dataset.labels is None or dataset.label_names is None:
        return None
    labels = [dataset.label_names[number] for number in dataset.used]
    if given:
        return LabelMapping(_checked(given, dataset, count), "given")
    # A class whose name is its number counts as unnamed.
    names = {name: number for name, number in (class_names or {}).items() if name != str(number)}
    named = {name.strip().casefold(): number for name, number in names.items() if 0 <= number < count}
    known = [label for label in labels if label.casefold() in named]
    if known and len(known) == len(labels):
        return LabelMapping({label: named[label.casefold()] for label in labels}, "names")
    if len(labels) > count:
        raise GradleakError(f"{dataset.name} has {len(labels)} labels, and the model {count} classes; {remedy}")
    if known:
        unknown = next(label for label in labels if label.casefold() not in named)
        raise GradleakError(
            f"'{known[0]}' is a class of the model, and '{unknown}' of {dataset.name} is none; give --labels a=0,b=1,…"
        )
    if len(dataset.label_names) <= count and _numbered_from_zero(dataset):
        return LabelMapping({label: number for number, label in enumerate(dataset.label_names)}, "order")
    return LabelMapping({label: number for number, label in enumerate(labels)}, "order")


def parse_mapping(text: str) -> dict[str, int]:
    """Parse a mapping of labels to classes, such as `1=0,2=1`.

    Raises:
        GradleakError: If it is not of this form.
    """
    classes: dict[str, int] = {}
    for part in text.split(","):
        label, equals, number = (piece.strip() for piece in part.rpartition("="))
        label = plain_number(label)
        if not equals or not label or not number.isdecimal():
            raise GradleakError(f"a mapping of labels is LABEL=CLASS,…, such as bad=0,good=1, not '{text}'")
        if classes.get(label, int(number)) != int(number):
            raise GradleakError(f"label '{label}' cannot be class {classes[label]} and class {number}")
        classes[label] = int(number)
    return classes


def _checked(given: Mapping[str, int], dataset: Dataset, count: int) -> dict[str, int]:
    names: Sequence[str] = dataset.label_names or ()
    by_name = {name.casefold(): name for name in names} | {name: name for name in names}
    classes = {}
    for label, number in given.items():
        name = by_name.get(label, by_name.get(label.casefold()))
        if name is None:
            shown = ", ".join(names[i] for i in dataset.used[:SHOWN])
            raise GradleakError(f"{dataset.name} has no label '{label}'; its labels: {shown}")
        if number >= count:
            raise GradleakError(f"class {number} for label '{label}' is not one of {count} (0 to {count - 1})")
        classes[name] = number
    return classes


def _numbered_from_zero(dataset: Dataset) -> bool:
    """Return whether a dataset's label numbers can be class numbers.

    Those of named labels can, and whole numbers that begin at 0. Others (1 to 5 stars) cannot, except a single one.
    """
    names = dataset.label_names or ()
    numbers = all(name == str(index) for index, name in enumerate(names))
    return not numbers or 0 in dataset.used or len(dataset.used) == 1
