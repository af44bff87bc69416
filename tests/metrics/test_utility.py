"""Accuracy and Matthews correlation against examples worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.errors import GradleakError
from gradleak.metrics import accuracy, matthews_correlation

pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)


def test_accuracy_is_the_share_of_right_predictions() -> None:
    assert accuracy([0, 1, 2, 1], [0, 1, 1, 1]) == 0.75


def test_matthews_correlation_of_three_classes_matches_the_working() -> None:
    # labels 0 0 1 1 2 2, predictions 0 1 1 1 2 0: s = 6, c = 4 right.
    # Predicted 2, 3, 1 times; true 2, 2, 2 times.
    # c s - sum p t = 24 - (4 + 6 + 2) = 12.
    # s^2 - sum p^2 = 36 - (4 + 9 + 1) = 22; s^2 - sum t^2 = 36 - 12 = 24.
    # 12 / sqrt(22 * 24) = 12 / sqrt(528) = 0.5222.
    value = matthews_correlation([0, 1, 1, 1, 2, 0], [0, 0, 1, 1, 2, 2])
    assert value == pytest.approx(12 / math.sqrt(528))


def test_matthews_correlation_does_not_depend_on_the_names_of_classes() -> None:
    assert matthews_correlation([5, 90, 90, -1], [5, 90, 5, -1]) == pytest.approx(
        matthews_correlation([0, 1, 1, 2], [0, 1, 0, 2])
    )


@settings(max_examples=100, deadline=None)
@given(pairs=pairs)
def test_matthews_correlation_of_two_classes_is_the_binary_formula(
    pairs: list[tuple[int, int]],
) -> None:
    tp, tn, fp, fn = (pairs.count(pair) for pair in [(1, 1), (0, 0), (1, 0), (0, 1)])
    spread = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    expected = (tp * tn - fp * fn) / math.sqrt(spread) if spread else 0.0
    predictions, labels = zip(*pairs, strict=True)
    assert matthews_correlation(predictions, labels) == pytest.approx(expected)


def test_matthews_correlation_of_one_class_is_zero() -> None:
    assert matthews_correlation([1, 1, 1], [0, 1, 0]) == 0.0
    assert matthews_correlation([0, 1, 0], [1, 1, 1]) == 0.0


def test_right_and_wrong_throughout_are_1_and_minus_1() -> None:
    assert matthews_correlation([0, 1, 0, 1], [0, 1, 0, 1]) == pytest.approx(1)
    assert matthews_correlation([1, 0, 1, 0], [0, 1, 0, 1]) == pytest.approx(-1)


@pytest.mark.parametrize("measure", [accuracy, matthews_correlation])
def test_input_that_cannot_be_scored_is_refused(measure: object) -> None:
    assert callable(measure)
    with pytest.raises(GradleakError, match="2 predictions do not fit 3 labels"):
        measure([0, 1], [0, 1, 1])
    with pytest.raises(GradleakError, match="no predictions"):
        measure([], [])
