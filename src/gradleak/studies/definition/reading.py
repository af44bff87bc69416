"""Readers of TOML tables and scalars: every mistake is one line with its place in the file and the values accepted.

Used by `schema`, which says which reader belongs to which key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradleak.bounds import LARGEST_NUMBER, LARGEST_WHOLE, LONGEST_NAME
from gradleak.errors import GradleakError, unknown_name
from gradleak.printable import quoted

REQUIRED: Any = object()


@dataclass(frozen=True)
class Place:
    """A place in a study file, for error messages.

    Attributes:
        words: the place in words: `quick.toml, grid 1, seed`.
        ready: whether the study ships with the package. It may then name attacks that this version does not have.
    """

    words: str
    ready: bool = False

    def inside(self, part: str) -> Place:
        """Return the place of a part."""
        return replace(self, words=f"{self.words}, {part}")

    def error(self, message: object) -> GradleakError:
        """Return an error that starts with this place."""
        return GradleakError(f"{self.words}: {message}")

    def check(self, read: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - whatever `read` returns
        """Call `read` and add this place to its errors."""
        try:
            return read(*arguments)
        except GradleakError as error:
            raise self.error(error) from None


Reader = Callable[[Any, Place], Any]


def shown(value: object) -> str:
    """Return a value as an error line quotes it."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_WHOLE:
        return "a number of so many digits"  # Python refuses to write the largest ones
    return quoted(repr(value))


@dataclass(frozen=True)
class Key:
    """A key of a table: the reader of its value, and its default."""

    read: Reader
    default: Any = REQUIRED


def read_table(table: object, keys: Mapping[str, Key], place: Place) -> dict[str, Any]:
    """Return the values of all keys of a table, with defaults for those it does not have."""
    if not isinstance(table, Mapping):
        raise place.error(f"takes a table with {', '.join(keys)}, not {shown(table)}")
    for name in table:
        if name not in keys:
            raise place.error(unknown_name("key", name, keys))
    missing = [name for name, key in keys.items() if key.default is REQUIRED and name not in table]
    if missing:
        raise place.error(f"lacks {' and '.join(missing)}")
    return {
        name: key.read(table[name], place.inside(name)) if name in table else key.default for name, key in keys.items()
    }


def text(value: object, place: Place) -> str:
    """Read a string that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"takes text in quotes, not {shown(value)}")
    if len(value) > LONGEST_NAME or "\0" in value:
        raise place.error(f"takes text of at most {LONGEST_NAME:,} characters without NUL, not {shown(value)}")
    return value


def flag(value: object, place: Place) -> bool:
    """Read a boolean."""
    if not isinstance(value, bool):
        raise place.error(f"takes true or false, not {shown(value)}")
    return value


def whole(least: int, most: float = LARGEST_WHOLE) -> Reader:
    """Return a reader of integers from `least` to `most`."""

    def read(value: object, place: Place) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise place.error(f"takes a whole number of {least} or more, not {shown(value)}")
        if value > most:
            raise place.error(f"takes a whole number of at most {most:,.0f}, not {shown(value)}")
        return value

    return read


def positive(value: object, place: Place) -> float:
    """Read a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_NUMBER:
        raise place.error(f"takes a number above 0, not {shown(value)}")
    return float(value)


def number(value: object, place: Place) -> float:
    """Read a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_NUMBER:
        raise place.error(f"takes a number, not {shown(value)}")
    return float(value)


def one_of(kind: str, names: Sequence[str]) -> Key:
    """Return a key that takes one of some names; the first is the default."""

    def read(value: object, place: Place) -> str:
        if text(value, place) not in names:
            raise place.error(unknown_name(kind, str(value), names))
        return str(value)

    return Key(read, names[0])


def listed(read: Reader) -> Reader:
    """Return a reader of a list; a single value counts as a list of one."""

    def read_all(value: object, place: Place) -> tuple[Any, ...]:
        items: Sequence[object] = value if isinstance(value, list) else [value]
        if not items:
            raise place.error("the list is empty")
        return tuple(read(item, place) for item in items)

    return read_all
