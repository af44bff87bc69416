"""Reading the tables of a study: every mistake is one line that names the place and what belongs there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradleak.errors import GradleakError, unknown_name

REQUIRED: Any = object()


@dataclass(frozen=True)
class Place:
    """Where in a study something stands.

    Attributes:
        words: the place in words: `quick.toml, grid 1, seed`.
        ready: the study came with the package, which may be older than the attacks that it names.
    """

    words: str
    ready: bool = False

    def inside(self, part: str) -> Place:
        """Return the place of a part."""
        return replace(self, words=f"{self.words}, {part}")

    def error(self, message: object) -> GradleakError:
        """Return the error to raise for what is found here."""
        return GradleakError(f"{self.words}: {message}")

    def check(self, read: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Return what `read` makes of the arguments; its complaint gets this place."""
        try:
            return read(*arguments)
        except GradleakError as error:
            raise self.error(error) from None


Reader = Callable[[Any, Place], Any]


@dataclass(frozen=True)
class Key:
    """A key of a table: how its value is read, and what holds if it is left out."""

    read: Reader
    default: Any = REQUIRED


def read_table(table: object, keys: Mapping[str, Key], place: Place) -> dict[str, Any]:
    """Return the values of all keys, those left out included."""
    if not isinstance(table, Mapping):
        raise place.error(f"takes a table with {', '.join(keys)}, not {table!r}")
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
    """Read text."""
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"takes text in quotes, not {value!r}")
    return value


def flag(value: object, place: Place) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise place.error(f"takes true or false, not {value!r}")
    return value


def whole(least: int, most: float = math.inf) -> Reader:
    """Return a reader of whole numbers."""

    def read(value: object, place: Place) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise place.error(f"takes a whole number of {least} or more, not {value!r}")
        return value

    return read


def positive(value: object, place: Place) -> float:
    """Read a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise place.error(f"takes a number above 0, not {value!r}")
    return float(value)


def listed(read: Reader) -> Reader:
    """Return a reader of a list, or of a single value that stands for a list of one."""

    def read_all(value: object, place: Place) -> tuple[Any, ...]:
        items: Sequence[object] = value if isinstance(value, list) else [value]
        if not items:
            raise place.error("the list is empty")
        return tuple(read(item, place) for item in items)

    return read_all
