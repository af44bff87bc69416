"""Dataset and the selection of examples."""

from __future__ import annotations

import pytest

from gradleak.data import Dataset, parse_take
from gradleak.errors import GradleakError

LABELLED = Dataset("pets", ("a cat", "a dog", "a fish"), (0, 1, 0), ("furry", "loyal"), "nowhere")


def test_a_dataset_knows_its_size_and_classes() -> None:
    assert len(LABELLED) == 3
    assert LABELLED.num_labels == 2
    assert Dataset("texts", ("a",), None, None, "nowhere").num_labels is None


def test_labels_must_fit_the_texts() -> None:
    with pytest.raises(GradleakError, match="2 texts but 1 labels"):
        Dataset("pets", ("a", "b"), (0,), ("x",), "nowhere")


def test_take_keeps_classes_and_order() -> None:
    taken = LABELLED.take(slice(1, 3))
    assert taken == Dataset("pets", ("a dog", "a fish"), (1, 0), ("furry", "loyal"), "nowhere")


def test_take_beyond_the_end_gives_what_there_is() -> None:
    assert LABELLED.take(slice(2, 50)).texts == ("a fish",)


def test_take_without_labels() -> None:
    taken = Dataset("texts", ("a", "b"), None, None, "nowhere").take(slice(1, None))
    assert (taken.texts, taken.labels) == (("b",), None)


def test_take_of_nothing_says_how_many_there_are() -> None:
    with pytest.raises(GradleakError) as caught:
        LABELLED.take(slice(5, None))
    assert str(caught.value) == "pets has 3 examples: 5: leaves none"


@pytest.mark.parametrize(
    ("text", "selection"),
    [("0:16", slice(0, 16)), (":16", slice(None, 16)), ("5:", slice(5, None)), ("3:4", slice(3, 4))],
)
def test_selections_are_read(text: str, selection: slice) -> None:
    assert parse_take(text) == selection


@pytest.mark.parametrize(
    "text",
    ["", ":", "b:a", "16", "-4:", ":-1", "5:5", "9:3", ":0", "0:16:2", "1.5:3", " 0:16", "\u0663:", "9" * 5000 + ":"],
)
def test_other_selections_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(GradleakError, match="taken as A:B") as caught:
        parse_take(text)
    assert "\n" not in str(caught.value)
