"""`NAME:VALUE` becomes a defense, or one line on what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.defenses import DPSGD, Clip, Defense, Laplace, Mask, Noise, Prune, PruneGlobal, Sign, TopK, parse_defense
from gradleak.errors import GradleakError


@pytest.mark.parametrize(
    ("text", "defense"),
    [
        ("noise:0.001", Noise(0.001)),
        ("laplace:1e-3", Laplace(0.001)),
        ("prune:.9", Prune(0.9)),
        ("prune-global:0.99", PruneGlobal(0.99)),
        ("mask:0.5", Mask(0.5)),
        ("topk:0.01", TopK(0.01)),
        ("sign", Sign()),
        (" clip : 1 ", Clip(1.0)),
        ("dpsgd: 1, 0.01", DPSGD(norm=1.0, deviation=0.01)),
    ],
)
def test_name_and_value_are_read(text: str, defense: Defense) -> None:
    assert parse_defense(text) == defense


@pytest.mark.parametrize(
    ("defense", "text"),
    [
        (Noise(0.001), "noise:0.001"),
        (Clip(1.0), "clip:1"),
        (Prune(1 / 3), f"prune:{1 / 3!r}"),
        (Sign(), "sign"),
        (DPSGD(1.0, 1e-5), "dpsgd:1,1e-05"),
    ],
)
def test_a_defense_is_written_as_it_is_read(defense: Defense, text: str) -> None:
    assert str(defense) == text


@given(st.floats(0, 1e6), st.floats(1e-6, 1e6))
def test_what_is_written_is_read_back(sigma: float, norm: float) -> None:
    assert parse_defense(str(Noise(sigma))) == Noise(sigma)
    assert parse_defense(str(DPSGD(norm, sigma))) == DPSGD(norm, sigma)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nois:0.1", "unknown defense 'nois'; did you mean 'noise'?"),
        ("", "unknown defense ''; known: clip, dpsgd, laplace, mask, noise, prune, prune-global, sign, topk"),
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
        ("noise:1,2", "defense noise takes a standard deviation of 0 or more, not '1,2'"),
        ("laplace:-1", "defense laplace takes a scale of 0 or more, not '-1'"),
        ("mask:1", "defense mask takes a share of 0 or more and below 1, not '1'"),
        ("prune-global:-0.1", "defense prune-global takes a share of 0 or more and below 1, not '-0.1'"),
        ("topk:0", "defense topk takes a share above 0 and at most 1, not '0'"),
        ("topk:nan", "defense topk takes a share above 0 and at most 1, not 'nan'"),
        ("dpsgd", f"defense dpsgd needs a value: dpsgd:VALUE with {DPSGD.takes}"),
        ("dpsgd:1", f"defense dpsgd takes {DPSGD.takes}, not '1'"),
        ("dpsgd:1,", f"defense dpsgd takes {DPSGD.takes}, not '1,'"),
        ("dpsgd:0,1", f"defense dpsgd takes {DPSGD.takes}, not '0,1'"),
        ("dpsgd:1,-1", f"defense dpsgd takes {DPSGD.takes}, not '1,-1'"),
        ("dpsgd:1,inf", f"defense dpsgd takes {DPSGD.takes}, not '1,inf'"),
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
