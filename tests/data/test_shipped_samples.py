"""The samples that the package carries."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gradleak.data
from gradleak.data import dataset_names, describe, load_dataset
from gradleak.errors import GradleakError

NAMES = ["banking77", "cola", "rotten_tomatoes", "sst2"]


def test_the_names_are_known() -> None:
    assert dataset_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_has_100_different_labelled_texts(name: str) -> None:
    dataset = load_dataset(name)
    assert len(dataset) == len(set(dataset.texts)) == 100
    assert dataset.labels is not None
    assert dataset.num_labels is not None
    assert set(dataset.labels) == set(range(dataset.num_labels))
    assert all(text == text.strip() and text for text in dataset.texts)


@pytest.mark.parametrize(
    ("name", "label_names"),
    [
        ("cola", ("unacceptable", "acceptable")),
        ("sst2", ("negative", "positive")),
        ("rotten_tomatoes", ("negative", "positive")),
    ],
)
def test_classes_are_named(name: str, label_names: tuple[str, ...]) -> None:
    assert load_dataset(name).label_names == label_names


def test_banking77_has_every_intent_under_its_own_number() -> None:
    dataset = load_dataset("banking77")
    assert dataset.label_names is not None
    assert dataset.labels is not None
    assert len(set(dataset.label_names)) == 77
    number = dataset.labels[dataset.texts.index("My card broke.")]
    assert dataset.label_names[number] == "card_not_working"
    assert max(Counter(dataset.labels).values()) <= 10
    # The numbering of the whole set on the hub, so that a classifier fits both.
    assert dataset.label_names[51] == "Refund_not_showing_up"


def test_samples_start_with_the_sentences_of_the_papers() -> None:
    cola = load_dataset("cola")
    assert cola.texts[0] == "Harriet alternated folk songs and pop songs together."
    assert cola.labels is not None
    assert cola.labels[:3] == (0, 0, 1)
    assert load_dataset("sst2").texts[0] == "slightly disappointed"


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_says_where_it_comes_from(name: str) -> None:
    about = describe(name)
    assert about["examples"] == 100
    assert about["labels"] == load_dataset(name).num_labels
    assert about["source"] == load_dataset(name).source
    assert all(about[key] for key in ("description", "source", "terms", "sample"))
    assert f"{name}:train" in about["splits"]


def test_describing_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(GradleakError, match="unknown dataset 'sst'; did you mean 'sst2'"):
        describe("sst")


def test_taking_past_the_end_points_to_the_whole_set() -> None:
    with pytest.raises(GradleakError) as caught:
        load_dataset("cola").take(slice(0, 10)).take(slice(100, 116))
    assert str(caught.value) == (
        "cola has 10 examples: 100:116 leaves none; the whole set is cola:train (pip install 'gradleak[hub]')"
    )


def test_a_sample_has_no_columns_to_choose() -> None:
    with pytest.raises(GradleakError, match="the sample 'cola' has no columns to choose"):
        load_dataset("cola", text_column="sentence")


def test_importing_data_and_metrics_is_light() -> None:
    # A bare parent package stands in for gradleak itself, whose own imports are not meant here.
    program = f"""
import sys, types
sys.modules["gradleak"] = types.ModuleType("gradleak")
sys.modules["gradleak"].__path__ = [{str(Path(gradleak.data.__file__).parents[1])!r}]
import gradleak.data, gradleak.metrics
print(sorted({{"torch", "transformers", "datasets", "scipy", "rouge_score", "nltk"}} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
