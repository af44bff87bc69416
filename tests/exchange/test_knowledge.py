from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.errors import GradleakError
from gradleak.exchange import FACTS, Knowledge, fact_field

sizes = st.integers(1, 5)


@st.composite
def knowledge(draw: st.DrawFn) -> Knowledge:
    """Anything that an attacker may be told about one batch."""
    size = draw(sizes)
    lengths = draw(st.none() | st.lists(st.integers(3, 20), min_size=size, max_size=size))
    longest = st.integers(3, 20) if lengths is None else st.just(max(lengths))
    return Knowledge(
        labels=draw(st.none() | st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        lengths=lengths,
        longest=draw(st.none() | longest),
        batch_size=draw(st.none() | st.just(size)),
        dropout=draw(st.none() | st.floats(0, 0.9)),
        defenses=draw(st.none() | st.lists(st.sampled_from(["noise:0.1", "prune:0.5"]), max_size=2)),
    )


@given(known=knowledge(), facts=st.sets(st.sampled_from(sorted(FACTS))))
def test_only_keeps_exactly_the_facts_named(known: Knowledge, facts: set[str]) -> None:
    kept = known.only(facts)
    assert set(kept.told) == facts & set(known.told)
    for fact in facts:
        assert getattr(kept, fact_field(fact)) == getattr(known, fact_field(fact))


@given(knowledge())
def test_sequences_are_known_as_soon_as_anything_gives_their_number_away(known: Knowledge) -> None:
    counts = {len(value) for value in (known.labels, known.lengths) if value is not None}
    counts |= set() if known.batch_size is None else {known.batch_size}
    assert known.sequences == (counts.pop() if counts else None)


@given(knowledge())
def test_told_lists_facts_by_the_names_that_know_takes(known: Knowledge) -> None:
    assert known.only(known.told) == known
    assert known.only([]) == Knowledge()
    assert Knowledge().told == ()


def test_a_dropout_rate_of_zero_and_no_defense_are_facts_too() -> None:
    assert Knowledge(dropout=0.0, defenses=[]).told == ("dropout", "defense")


def test_every_field_is_a_fact() -> None:
    assert set(FACTS.values()) == set(Knowledge.__dataclass_fields__)


def test_lists_are_welcome() -> None:
    known = Knowledge(labels=[1, 0], lengths=[4, 5], defenses=["noise:0.1"])
    assert (known.labels, known.lengths, known.defenses) == ((1, 0), (4, 5), ("noise:0.1",))
    assert hash(known) == hash(Knowledge(labels=(1, 0), lengths=(4, 5), defenses=("noise:0.1",)))


@pytest.mark.parametrize(
    "facts",
    [
        {"labels": [1], "lengths": [4, 5]},
        {"labels": [1, 0], "batch_size": 3},
        {"lengths": [4], "batch_size": 2},
        {"labels": [], "lengths": [4]},
    ],
    ids=str,
)
def test_facts_about_different_numbers_of_sequences_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(GradleakError, match="different numbers of sequences"):
        Knowledge(**facts)


@pytest.mark.parametrize("facts", [{"labels": []}, {"lengths": []}, {"batch_size": 0}, {"batch_size": -1}], ids=str)
def test_a_batch_of_nothing_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(GradleakError, match="at least one sequence"):
        Knowledge(**facts)


def test_a_longest_length_that_the_lengths_contradict_is_refused() -> None:
    assert Knowledge(lengths=[4, 6], longest=6).longest == 6
    with pytest.raises(GradleakError, match="longest"):
        Knowledge(lengths=[4, 6], longest=5)


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("label", "unknown knowledge 'label'; did you mean 'labels'"),
        ("batch_size", "did you mean 'batch-size'"),
        ("zzz", "known: batch-size, defense, dropout, labels, lengths, longest"),
    ],
)
def test_an_unknown_fact_says_what_is_near(fact: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Knowledge().only([fact])
