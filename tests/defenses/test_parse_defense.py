"""`NAME:VALUE` becomes a defense, or one line on what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.defenses import Clip, Defense, Noise, Prune, Sign, parse_defense
from gradleak.errors import GradleakError


@pytest.mark.parametrize(
    ("text", "defense"),
    [("noise:0.001", Noise(0.001)), ("prune:.9", Prune(0.9)), ("sign", Sign()), (" clip : 1 ", Clip(1.0))],
)
def test_name_and_value_are_read(text: str, defense: Defense) -> None:
    assert parse_defense(text) == defense


@pytest.mark.parametrize(
    ("defense", "text"),
    [(Noise(0.001), "noise:0.001"), (Clip(1.0), "clip:1"), (Prune(1 / 3), f"prune:{1 / 3!r}"), (Sign(), "sign")],
)
def test_a_defense_is_written_as_it_is_read(defense: Defense, text: str) -> None:
    assert str(defense) == text


@given(st.floats(0, 1e6))
def test_what_is_written_is_read_back(sigma: float) -> None:
    assert parse_defense(str(Noise(sigma))) == Noise(sigma)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nois:0.1", "unknown defense 'nois'; did you mean 'noise'?"),
        ("", "unknown defense ''; known: clip, noise, prune, sign"),
        ("noise", "defense noise needs a value: noise:VALUE with a standard deviation of 0 or more"),
        ("noise:", "defense noise needs a value: noise:VALUE with a standard deviation of 0 or more"),
        ("noise:much", "defense noise takes a standard deviation of 0 or more, not 'much'"),
        ("noise:-1", "defense noise takes a standard deviation of 0 or more, not '-1'"),
        ("noise:nan", "defense noise takes a standard deviation of 0 or more, not 'nan'"),
        ("noise:inf", "defense noise takes a standard deviation of 0 or more, not 'inf'"),
        ("prune:1", "defense prune takes a share of 0 or more and below 1, not '1'"),
        ("prune:nan", "defense prune takes a share of 0 or more and below 1, not 'nan'"),
        ("clip:0", "defense clip takes a norm above 0, not '0'"),
        ("clip:nan", "defense clip takes a norm above 0, not 'nan'"),
        ("sign:1", "defense sign takes no value; write 'sign'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(GradleakError) as caught:
        parse_defense(text)
    assert str(caught.value) == message


def test_a_wrong_value_is_refused_in_python_too() -> None:
    with pytest.raises(GradleakError, match="takes a share"):
        Prune(2.0)
