"""Names that lead nowhere."""

from __future__ import annotations

import pytest

from gradleak.data import load_dataset
from gradleak.errors import GradleakError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cloa", "unknown dataset 'cloa'; did you mean 'cola'?"),
        ("CoLA", "unknown dataset 'CoLA'; did you mean 'cola'?"),
        ("", "unknown dataset ''; known: banking77, cola, rotten_tomatoes, sst2"),
        ("sst:train", "unknown dataset 'sst'; did you mean 'sst2'?"),
        ("cola:trian", "unknown split of cola 'trian'; did you mean 'train'?"),
        ("cola:", "unknown split of cola ''; known: test, train, validation"),
        ("banking77:validation", "unknown split of banking77 'validation'; known: test, train"),
        ("mine.csv:train", "a file has no splits: give mine.csv without ':train'"),
        ("folder/mine", "folder/mine is no file; a set on the Hugging Face hub needs its split: folder/mine:train"),
        (
            "folder/mine.parquet",
            "folder/mine.parquet has the extension '.parquet', which is not supported; "
            "supported: .txt, .csv, .tsv, .jsonl",
        ),
        (
            "a/b/c/d:train",
            "a set on the Hugging Face hub is ORG/SET:SPLIT or ORG/SET/CONFIG:SPLIT, not 'a/b/c/d:train'",
        ),
        ("a/:train", "a set on the Hugging Face hub is ORG/SET:SPLIT or ORG/SET/CONFIG:SPLIT, not 'a/:train'"),
        ("a/b:", "a set on the Hugging Face hub is ORG/SET:SPLIT or ORG/SET/CONFIG:SPLIT, not 'a/b:'"),
    ],
)
def test_a_name_that_leads_nowhere_gets_one_line(name: str, message: str) -> None:
    with pytest.raises(GradleakError) as caught:
        load_dataset(name)
    assert str(caught.value) == message


def test_a_whole_text_given_as_name_is_refused_like_any_other() -> None:
    with pytest.raises(GradleakError, match="unknown dataset"):
        load_dataset("the patient was given ten milligrams " * 200)
