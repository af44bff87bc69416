"""Sets on the hub, with a stand-in for the package `datasets`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gradleak.data import Dataset, load_dataset
from gradleak.errors import GradleakError

STRING = SimpleNamespace(dtype="string")
INTEGER = SimpleNamespace(dtype="int64")


def classes(*names: str) -> SimpleNamespace:
    return SimpleNamespace(dtype="int64", names=list(names))


class Table:
    """Behaves like `datasets.Dataset`; unreadable columns stand for images and sound."""

    def __init__(self, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        self.features = features
        self.column_names = list(features)
        self._columns = columns

    def __getitem__(self, column: str) -> list[Any]:
        return self._columns[column]


class Hub:
    """Records what it was asked for and answers with one table or one error."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.answer: Table | Exception = RuntimeError("no answer set")

    def load_dataset(self, *arguments: object, **options: object) -> Table:
        self.asked.append((arguments, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub()
    module = ModuleType("datasets")
    module.load_dataset = stand_in.load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return stand_in


@pytest.mark.parametrize(
    ("name", "hub_id", "config", "text_column"),
    [
        ("cola:train", "nyu-mll/glue", "cola", "sentence"),
        ("sst2:validation", "nyu-mll/glue", "sst2", "sentence"),
        ("rotten_tomatoes:test", "cornell-movie-review-data/rotten_tomatoes", None, "text"),
        ("banking77:test", "legacy-datasets/banking77", None, "text"),
    ],
)
def test_a_known_set_is_loaded_whole(hub: Hub, name: str, hub_id: str, config: str | None, text_column: str) -> None:
    features = {text_column: STRING, "label": classes("no", "yes"), "idx": INTEGER}
    hub.answer = Table(features, {text_column: [" a cat ", "a dog"], "label": [1, 0]})
    dataset = load_dataset(name)
    source = load_dataset(name.split(":")[0]).source
    assert dataset == Dataset(name, ("a cat", "a dog"), (1, 0), ("no", "yes"), source)
    # Remote code is never asked for.
    assert hub.asked == [((hub_id,), {"name": config, "split": name.split(":")[1]})]


@pytest.mark.parametrize(
    ("name", "hub_id", "config"),
    [("org/pets:train", "org/pets", None), ("org/pets/small:dev", "org/pets", "small")],
)
def test_any_set_is_loaded_by_its_id(hub: Hub, name: str, hub_id: str, config: str | None) -> None:
    hub.answer = Table(
        {"id": INTEGER, "Utterance": STRING, "intent": STRING},
        {"Utterance": ["a cat", "a dog"], "intent": ["purr", "bark"]},
    )
    dataset = load_dataset(name)
    assert dataset.texts == ("a cat", "a dog")
    assert (dataset.labels, dataset.label_names) == ((1, 0), ("bark", "purr"))
    assert dataset.source.startswith("Hugging Face hub: org/pets")
    assert hub.asked == [((hub_id,), {"name": config, "split": name.split(":")[1]})]


def test_only_text_columns_are_read_to_find_the_text(hub: Hub) -> None:
    hub.answer = Table(
        {"picture": SimpleNamespace(), "key": STRING, "caption": STRING},
        {"key": ["x1", "x2"], "caption": ["a cat", "a dog"]},
    )
    assert load_dataset("org/pets:train").texts == ("a cat", "a dog")


def test_columns_can_be_chosen(hub: Hub) -> None:
    hub.answer = Table(
        {"sentence": STRING, "label": INTEGER, "other": STRING, "mood": STRING},
        {"other": ["a cat", "a dog"], "mood": ["good", "bad"]},
    )
    dataset = load_dataset("cola:train", text_column="other", label_column="mood")
    assert (dataset.texts, dataset.labels) == (("a cat", "a dog"), (1, 0))


def test_columns_that_cannot_be_found_are_listed(hub: Hub) -> None:
    hub.answer = Table({"from": STRING, "to": STRING}, {"from": ["a cat"], "to": ["a dog"]})
    with pytest.raises(GradleakError, match=r"no text column found in org/pets:train; its columns: from, to"):
        load_dataset("org/pets:train")


def test_withheld_labels_are_no_labels(hub: Hub) -> None:
    hub.answer = Table(
        {"sentence": STRING, "label": classes("no", "yes")},
        {"sentence": ["a cat", "a dog"], "label": [-1, -1]},
    )
    dataset = load_dataset("cola:test")
    assert (len(dataset), dataset.labels, dataset.label_names) == (2, None, None)


def test_examples_without_text_or_label_are_left_out(hub: Hub) -> None:
    hub.answer = Table(
        {"text": STRING, "label": classes("no", "yes")},
        {"text": ["a", None, " ", "b", "c"], "label": [1, 0, 0, -1, 0]},
    )
    dataset = load_dataset("org/pets:train")
    assert (dataset.texts, dataset.labels) == (("a", "c"), (1, 0))


def test_a_set_without_labels_has_none(hub: Hub) -> None:
    hub.answer = Table({"text": STRING}, {"text": ["a", ""]})
    dataset = load_dataset("org/pets:train")
    assert (dataset.texts, dataset.labels) == (("a",), None)


def test_a_set_without_texts_is_refused(hub: Hub) -> None:
    hub.answer = Table({"text": STRING}, {"text": ["", None]})
    with pytest.raises(GradleakError, match="org/pets:train has no texts in column 'text'"):
        load_dataset("org/pets:train")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (lambda: ConnectionError("\nCouldn't reach the hub\nand more"), "Couldn't reach the hub"),
        (lambda: ValueError('Unknown split "trian". Should be one of ["train"].'), 'Unknown split "trian".'),
        (TimeoutError, "TimeoutError"),
    ],
)
def test_a_failure_names_the_set_and_the_reason_in_one_line(
    hub: Hub, failure: Callable[[], Exception], reason: str
) -> None:
    hub.answer = failure()
    with pytest.raises(GradleakError) as caught:
        load_dataset("org/pets/small:trian")
    start = "cannot load 'org/pets/small:trian' (org/pets, small) from the Hugging Face hub: "
    assert str(caught.value).startswith(start + reason)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(GradleakError, match=r"needs datasets: pip install 'gradleak\[hub\]'"):
        load_dataset("cola:train")


def test_the_real_package_gives_tables_of_the_shape_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a cat", "a dog"], "label": [1, 0]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
    dataset = load_dataset("org/pets:train")
    assert (dataset.texts, dataset.labels, dataset.label_names) == (("a cat", "a dog"), (1, 0), ("no", "yes"))
