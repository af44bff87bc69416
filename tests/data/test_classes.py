"""Labels of a dataset, and the classes of a model that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.data import Dataset, LabelMapping, classes_needed, load_dataset, map_labels, parse_mapping
from gradleak.data.labels import number_labels
from gradleak.errors import GradleakError

NAMES = {"awful": 0, "bad": 1, "fair": 2, "good": 3, "great": 4}


def labelled(folder: Path, *labels: str) -> Dataset:
    file = folder / "d.csv"
    file.write_text("label,text\n" + "".join(f"{label},a cat\n" for label in labels), encoding="utf-8")
    return load_dataset(str(file))


def mapped(dataset: Dataset, count: int, **more: object) -> LabelMapping:
    mapping = map_labels(dataset, count, **more)  # type: ignore[arg-type]
    assert mapping is not None
    return mapping


@pytest.mark.parametrize(
    ("labels", "count", "expected"),
    [
        (["5", "1", "3", "2", "4"], 5, (4, 0, 2, 1, 3)),
        (["0", "1"], 5, (0, 1)),
        (["0", "2"], 3, (0, 2)),
        (["0", "2", "7"], 3, (0, 1, 2)),
        (["1"], 2, (1,)),
        (["9"], 2, (0,)),
        (["10", "2"], 2, (1, 0)),
        (["10.5", "9.5"], 2, (1, 0)),
        (["-1", "1"], 2, (0, 1)),
        (["spam", "ham"], 5, (1, 0)),
    ],
)
def test_labels_are_mapped_by_their_order(
    tmp_path: Path, labels: list[str], count: int, expected: tuple[int, ...]
) -> None:
    dataset = labelled(tmp_path, *labels)
    mapping = mapped(dataset, count)
    assert (mapping(dataset), mapping.by) == (expected, "order")


def test_labels_are_mapped_by_the_names_of_classes_in_any_case(tmp_path: Path) -> None:
    dataset = labelled(tmp_path, "Great", "AWFUL", "good")
    mapping = mapped(dataset, 5, class_names=NAMES)
    assert (mapping(dataset), mapping.by) == ((4, 0, 3), "names")
    assert str(mapping) == "AWFUL → 0, Great → 4, good → 3 (by the names of the model's classes)"


def test_classes_that_are_called_by_their_numbers_have_no_names(tmp_path: Path) -> None:
    dataset = labelled(tmp_path, "1", "2", "3")
    assert mapped(dataset, 3, class_names={"0": 0, "1": 1, "2": 2})(dataset) == (0, 1, 2)
    assert mapped(dataset, 3, class_names={"1": 2, "2": 1, "3": 0})(dataset) == (2, 1, 0)


def test_names_that_match_in_part_are_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=r"'great' is a class of the model, and 'poor' of .* is none"):
        map_labels(labelled(tmp_path, "great", "poor"), 5, NAMES)


def test_more_labels_than_classes_are_refused_with_both_counts(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=r"has 3 labels, and the model 2 classes; give --labels a=0,b=1,…"):
        map_labels(labelled(tmp_path, "a", "b", "c"), 2)


def test_a_part_is_mapped_as_the_whole(tmp_path: Path) -> None:
    dataset = labelled(tmp_path, "1", "2", "3").take(slice(2, 3))
    assert mapped(dataset, 3)(dataset) == (2,)


def test_a_given_mapping_counts_and_may_join_labels(tmp_path: Path) -> None:
    dataset = labelled(tmp_path, "1", "2", "3", "good")
    mapping = mapped(dataset, 2, class_names={"good": 0}, given=parse_mapping("1=0, 2=0,3=1,GOOD=1"))
    assert (mapping(dataset), mapping.by) == ((0, 0, 1, 1), "given")
    assert classes_needed(dataset, {"1": 0, "good": 3}) == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"4": 0}, "has no label '4'; its labels: 1, 2"),
        ({"1": 2, "2": 0}, r"class 2 for label '1' is not one of 2 \(0 to 1\)"),
        ({"1": 0}, "label '2' of .* has no class: 1 → 0 .as given.; map it, too"),
    ],
)
def test_a_given_mapping_that_does_not_fit_is_refused(tmp_path: Path, given: dict[str, int], message: str) -> None:
    dataset = labelled(tmp_path, "1", "2")
    with pytest.raises(GradleakError, match=message):
        mapped(dataset, 2, given=given)(dataset)


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=b", "a=-1", "a=1.5", "a=0,", "a=0,a=1"])
def test_a_mapping_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(GradleakError):
        parse_mapping(text)


@pytest.mark.parametrize(
    ("labels", "count"), [(["1", "2", "3"], 3), (["0", "2"], 3), (["a", "b"], 2), (["1"], 2), (["-1", "0", "1"], 3)]
)
def test_a_new_classifier_has_as_many_classes_as_labels(tmp_path: Path, labels: list[str], count: int) -> None:
    assert classes_needed(labelled(tmp_path, *labels)) == count


def test_texts_without_labels_need_no_classes() -> None:
    dataset = Dataset("texts", ("a",), None, None, "nowhere")
    assert map_labels(dataset, 2) is None
    assert classes_needed(dataset) is None


def test_long_mappings_are_shown_in_part() -> None:
    shown = str(LabelMapping({f"l{i}": i for i in range(10)}, "order"))
    assert shown.endswith("l7 → 7 and 2 more (by the order of the labels; --labels a=0,b=1,… says otherwise)")


def test_whole_numbers_of_a_table_of_floats_are_class_numbers() -> None:
    assert number_labels(["0.0", "2.0", "0.0"], "here") == ((0, 2, 0), ("0", "1", "2"))
    assert number_labels(["0.5", "2.0"], "here") == ((0, 1), ("0.5", "2"))
