"""Convert the values of a label column to class numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gradleak.errors import GradleakError

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_WHOLE_FLOAT = re.compile(r"^(-?[0-9]{1,18})\.0+$")
# Larger numbers are identifiers of something, not classes.
_MOST_CLASSES = 100_000


def number_labels(labels: Sequence[str], place: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return a class number per label, and the names of the classes.

    Integers (2.0 included) are kept as class numbers, from 0 to the largest. Other labels are numbered in sorted order,
    numbers by size; so are integers if any is below zero.

    Args:
        labels: The labels as text.
        place: Name of the file or set, for the error message.

    Raises:
        GradleakError: If an integer is too large to be a class number.
    """
    labels = [plain_number(label) for label in labels]
    if not all(_INTEGER.fullmatch(label) for label in labels):
        return _in_order(labels, _sorted(set(labels)))
    numbers = [int(label) for label in labels]
    if min(numbers) < 0:
        return _in_order([str(n) for n in numbers], [str(n) for n in sorted(set(numbers))])
    largest = max(numbers)
    if largest >= _MOST_CLASSES:
        raise GradleakError(
            f"label {largest} in {place} is too large for a class number; name the label column with --label-column"
        )
    return tuple(numbers), tuple(str(n) for n in range(largest + 1))


def plain_number(label: str) -> str:
    """Return a label without the decimal point of a whole number: `2.0`, as in a table of floats, becomes `2`."""
    return _WHOLE_FLOAT.sub(r"\1", label)


def label_as_text(value: object) -> str | None:
    """Return a label as text, or None if the value cannot be a label."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value).strip() or None
    return None


def _sorted(labels: set[str]) -> list[str]:
    """Sort labels by size if all of them are numbers, else alphabetically."""
    try:
        sizes = {label: float(label) for label in labels}
    except ValueError:
        return sorted(labels)
    if not all(map(math.isfinite, sizes.values())):  # "nan" and "inf" are names
        return sorted(labels)
    return sorted(labels, key=lambda label: (sizes[label], label))


def _in_order(labels: Sequence[str], names: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    numbers = {name: number for number, name in enumerate(names)}
    return tuple(numbers[label] for label in labels), tuple(names)
