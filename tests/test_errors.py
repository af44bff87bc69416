from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.errors import GradleakError, missing_extra, unknown_name

KNOWN = ["dlg", "LAMP", "tag", "grab"]


@pytest.mark.parametrize(
    ("name", "nearest"), [("dgl", "dlg"), ("lamp", "LAMP"), ("LAMPS", "LAMP"), ("TAG", "tag"), ("garb", "grab")]
)
def test_an_unknown_name_suggests_the_nearest_one_as_it_is_written(name: str, nearest: str) -> None:
    assert str(unknown_name("attack", name, KNOWN)) == f"unknown attack '{name}'; did you mean '{nearest}'?"


def test_a_name_near_to_none_lists_them_all() -> None:
    assert str(unknown_name("attack", "xyzzy", KNOWN)) == "unknown attack 'xyzzy'; known: LAMP, dlg, grab, tag"
    assert str(unknown_name("attack", "x", [])) == "unknown attack 'x'; known: none"


@given(name=st.text(max_size=20), known=st.lists(st.text(min_size=1, max_size=10), max_size=5))
def test_the_error_is_always_built_and_names_the_culprit(name: str, known: list[str]) -> None:
    error = unknown_name("model", name, known)
    assert isinstance(error, GradleakError)
    assert str(error).startswith(f"unknown model '{name}'; ")


def test_a_missing_extra_says_what_to_install() -> None:
    error = missing_extra("opacus", "dp", "the defense dp-sgd")
    assert str(error) == "the defense dp-sgd needs opacus: pip install 'gradleak[dp]'"


def test_errors_of_the_user_can_be_caught_as_value_errors() -> None:
    with pytest.raises(ValueError, match="mend"):
        raise GradleakError("mend this")
