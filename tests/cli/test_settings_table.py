"""Tables of settings: made from the declarations of any dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from gradleak.cli.output.settings_table import settings_record, settings_table, value_text
from gradleak.settings import setting


@dataclass(frozen=True, kw_only=True)
class Oven:
    """Every kind of setting."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {"plain": {}, "hot": {"heat": 250.0, "fan": True}}

    heat: float = setting(180.0, "heat of the oven", unit="degrees", above=0, most=300, paper="Cook 1900, table 2")
    loaves: int = setting(2, "loaves at once", least=1)
    minutes: int | None = setting(None, "time of baking", least=1)
    fan: bool = setting(False, "whether air is moved")
    shelf: Literal["top", "middle"] = setting("middle", "where the loaf is")
    flour: str = "rye"


def test_a_row_says_all_that_is_declared() -> None:
    headers, rows = settings_table(Oven)
    assert headers == ["setting", "default", "presets", "allowed", "meaning"]
    assert rows == [
        [
            "heat",
            "180 degrees",
            "hot: 250",
            "number, above 0, at most 300",
            "heat of the oven (paper: Cook 1900, table 2)",
        ],
        ["loaves", "2", "", "whole number, at least 1", "loaves at once"],
        ["minutes", "none", "", "whole number, at least 1, or none", "time of baking"],
        ["fan", "false", "hot: true", "true or false", "whether air is moved"],
        ["shelf", "middle", "", "top, middle", "where the loaf is"],
        ["flour", "rye", "", "text", ""],
    ]


def test_json_has_each_part_apart() -> None:
    heat = settings_record(Oven)[0]
    assert heat == {
        "name": "heat",
        "default": 180.0,
        "presets": {"hot": 250.0},
        "allowed": "number, above 0, at most 300",
        "unit": "degrees",
        "meaning": "heat of the oven",
        "paper": "Cook 1900, table 2",
    }


def test_a_class_without_presets_has_no_column_for_them() -> None:
    @dataclass
    class Pan:
        sizes: tuple[int, ...] = (20, 24)

    assert settings_table(Pan) == (["setting", "default", "allowed"], [["sizes", "20,24", "whole numbers"]])


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (1e-5, "1e-05"), (0.123456789, "0.123456789"), (True, "true"), (None, "none")]
)
def test_values_are_written_as_they_are_given(value: object, text: str) -> None:
    assert value_text(value) == text
