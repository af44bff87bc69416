"""Settings: typed hyperparameters, declared once with their meaning, unit, bounds and the paper's value.

A class with settings is a dataclass whose fields are made by `setting`. From that one declaration come the checks of
values that Python code, a study file or `--set` gives, what `gradleak list` shows, and the tables of the documentation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gradleak.bounds import LARGEST_NUMBER, LARGEST_WHOLE
from gradleak.errors import GradleakError, unknown_name
from gradleak.printable import quoted

_KEY = "gradleak.setting"
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_KINDS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def setting(
    default: Any,  # noqa: ANN401 - a value of the field's type
    meaning: str,
    *,
    unit: str = "",
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    paper: str = "",
) -> Any:  # noqa: ANN401 - a dataclass field, which a type checker takes for the value
    """Declare a setting as a field of a dataclass.

    For example `steps: int = setting(2_500, "steps of the descent", least=1, paper="LAMP, appendix D")`.

    Args:
        default: the value where none is given; for a published attack the paper's.
        meaning: what it does, in one line.
        unit: what it is counted in.
        least: the smallest value that it may have.
        above: it must be larger than this.
        most: the largest value that it may have.
        paper: the paper's section, its value where ours differs, or "not in the paper".
    """
    return dataclasses.field(
        default=default,
        metadata={
            _KEY: {"meaning": meaning, "unit": unit, "least": least, "above": above, "most": most, "paper": paper}
        },
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a class: its type, default, meaning, unit, bounds and origin.

    Attributes:
        name: the field's name.
        kind: bool, int, float or str.
        optional: whether it may be None.
        choices: the texts that it may be; empty for any.
        default: the value where none is given.
        meaning: what it does.
        unit: what it is counted in.
        least: the smallest value that it may have.
        above: it must be larger than this.
        most: the largest value that it may have.
        paper: the paper's section or value, or "not in the paper".
    """

    name: str
    kind: type
    optional: bool = False
    choices: tuple[str, ...] = ()
    default: Any = None
    meaning: str = ""
    unit: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    paper: str = ""

    @property
    def range(self) -> str:
        """The values that it may have, in words."""
        if self.choices:
            return ", ".join(self.choices)
        bounds = [("at least", self.least), ("above", self.above), ("at most", self.most)]
        return ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)

    @property
    def origin(self) -> str:
        """Where the default comes from, in words: of the paper, or not; empty where nothing is said."""
        return self.paper if not self.paper or self.paper.startswith("not ") else f"paper: {self.paper}"

    def parse(self, text: str) -> Any:  # noqa: ANN401 - a value of the setting's type
        """Read a value that was given as text."""
        if self.optional and text.lower() == "none":
            return None
        try:
            value = _READERS[self.kind](text)
        except (ValueError, KeyError, OverflowError):
            raise self._refused(text) from None
        if isinstance(value, float) and not isfinite(value):
            raise self._refused(text)
        return value

    def check(self, value: object) -> None:
        """Raise a GradleakError if a value is not within the bounds."""
        if self.choices and value not in self.choices:
            raise unknown_name(self.name, str(value), self.choices)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        limit = LARGEST_NUMBER if self.kind is float else LARGEST_WHOLE
        if not abs(value) <= limit and isfinite(value):
            raise GradleakError(f"{self.name} must be at most {limit if self.most is None else self.most:g}")
        if self.least is not None and value < self.least:
            raise GradleakError(f"{self.name} must be at least {self.least:g}, not {value:g}")
        if self.above is not None and not value > self.above:
            raise GradleakError(f"{self.name} must be above {self.above:g}, not {value:g}")
        if self.most is not None and value > self.most:
            raise GradleakError(f"{self.name} must be at most {self.most:g}, not {value:g}")

    def fits(self, value: object) -> bool:
        """Return whether a value is of the setting's type; a whole number may stand for any other number."""
        if value is None:
            return self.optional
        if self.kind is bool or isinstance(value, bool):
            return self.kind is bool and isinstance(value, bool)
        return isinstance(value, int | float if self.kind is float else self.kind)

    def _refused(self, text: str) -> GradleakError:
        kind = "a number or none" if self.optional else _KINDS[self.kind]
        return GradleakError(f"setting {self.name} takes {kind}, not '{quoted(text)}'")


def _boolean(text: str) -> bool:
    return _BOOLEANS[text.lower()]


def _whole(text: str) -> int:
    """Read a whole number, also where it is written as 12.0."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number) if "." in text or "e" in text.lower() else int(text)


_READERS: Mapping[type, Callable[[str], Any]] = {bool: _boolean, int: _whole, float: float, str: str}


@cache
def settings_of(kind: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in the order in which they are declared."""
    hints = get_type_hints(kind)
    return {field.name: _setting(field, hints[field.name]) for field in dataclasses.fields(kind)}


def check_settings(instance: object) -> None:
    """Raise a GradleakError if a setting of an object is not within its bounds."""
    kind: type = type(instance)
    for name, one in settings_of(kind).items():
        one.check(getattr(instance, name))


def parse_settings_text(kind: type, text: str, option: str, form: str) -> dict[str, Any]:
    """Read `steps=4,lr=5e-5` to values of the settings of a dataclass.

    Args:
        kind: the dataclass.
        text: the settings.
        option: where they were given, for errors.
        form: what is expected there, for errors.

    Raises:
        GradleakError: if there is no such setting, or it takes no such value.
    """
    declared = settings_of(kind)
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise GradleakError(f"{option} takes {form}, not '{text}'")
        if key not in declared:
            raise unknown_name(f"setting of {option}", key, declared)
        try:
            values[key] = declared[key].parse(value)
        except GradleakError:
            raise GradleakError(f"{option} {key} takes {_KINDS[declared[key].kind]}, not '{quoted(value)}'") from None
    return values


def parse_duration(text: str, option: str) -> float:
    """Read `90s`, `5m` or `1h` to seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        seconds = float(text[:-1]) * units[text[-1]]
    except (ValueError, KeyError, IndexError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise GradleakError(f"{option} takes a time as 90s, 5m or 1h, not '{text}'")
    return seconds


def settings_texts(values: Mapping[str, Any]) -> list[str]:
    """Return values of settings as `steps=4`, `lr=5e-05`, `shuffle=true`; those that are None are left out."""
    return [f"{name}={_value_text(value)}" for name, value in values.items() if value is not None]


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _setting(field: dataclasses.Field[Any], hint: Any) -> Setting:  # noqa: ANN401 - a type hint
    options = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    optional, (plain, *_) = NoneType in options, [*(options - {NoneType})]
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    return Setting(
        name=field.name,
        kind=str if choices else plain,
        optional=optional,
        choices=choices,
        default=field.default,
        **field.metadata.get(_KEY, {}),
    )
