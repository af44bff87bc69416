"""The user's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.data import Dataset, load_dataset
from gradleak.errors import GradleakError


def load(folder: Path, name: str, content: str | bytes, **columns: str) -> Dataset:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_dataset(str(path), **columns)


def complaint(folder: Path, name: str, content: str | bytes, **columns: str) -> str:
    """Return the error, which is one line and names the file, without the folder."""
    with pytest.raises(GradleakError) as caught:
        load(folder, name, content, **columns)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder / name) in message
    return message.replace(str(folder) + "/", "")


def test_a_txt_file_is_one_text_a_line(tmp_path: Path) -> None:
    dataset = load(tmp_path, "notes.txt", "a cat\r\n\n  \na\u2028dog\n")
    assert dataset.texts == ("a cat", "a\u2028dog")
    assert dataset.labels is None
    assert dataset.label_names is None
    assert dataset.num_labels is None
    assert dataset.name == dataset.source == str(tmp_path / "notes.txt")


def test_a_csv_file_may_quote_and_break_lines(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.csv", 'label,text\n1,"a ""big"" cat, or\ntwo"\n\n0,a dog\n')
    assert dataset.texts == ('a "big" cat, or\ntwo', "a dog")
    assert dataset.labels == (1, 0)


def test_a_tsv_file_takes_quotes_as_they_are(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.tsv", 'label\ttext\n1\t"a, cat\n\n0\ta dog"\n')
    assert dataset.texts == ('"a, cat', 'a dog"')


def test_a_jsonl_file_may_order_its_columns_freely(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.jsonl", '{"text": "a cat", "label": 1}\n\n{"label": 0, "text": "a dög"}\n')
    assert dataset.texts == ("a cat", "a dög")
    assert dataset.labels == (1, 0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.txt", "a cat\n"),
        ("d.csv", "text\na cat\n"),
        ("d.TSV", "text\na cat\n"),
        ("d.jsonl", '{"text": "a cat"}\n'),
    ],
)
def test_a_byte_order_mark_is_accepted(tmp_path: Path, name: str, content: str) -> None:
    assert load(tmp_path, name, b"\xef\xbb\xbf" + content.encode()).texts == ("a cat",)


def test_a_file_without_labels_has_none(tmp_path: Path) -> None:
    assert load(tmp_path, "d.csv", "text\na cat\n").labels is None


@pytest.mark.parametrize(
    "text",
    ["text", "sentence", "content", "utterance", "question", "query", "review", "comment", "message", "Body"],
)
@pytest.mark.parametrize("label", ["label", "Labels", "INTENT", "class", "category", "target", "sentiment"])
def test_columns_are_found_by_their_usual_names(tmp_path: Path, text: str, label: str) -> None:
    dataset = load(tmp_path, "d.csv", f"number,{label},{text}\n7,1,cat\n8,0,dog\n")
    assert dataset.texts == ("cat", "dog")
    assert dataset.labels == (1, 0)


def test_the_only_column_is_the_text(tmp_path: Path) -> None:
    assert load(tmp_path, "d.csv", "letters\na cat\nx\n").texts == ("a cat", "x")


def test_the_only_column_that_reads_like_text_is_the_text(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.csv", "key,day,letters,label\nx1,2 May,dear cat,yes\nx2,3 May,dear dog,no\n")
    assert dataset.texts == ("dear cat", "dear dog")
    assert dataset.label_names == ("no", "yes")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    content = "text,letter,label,mood\nx,a cat,0,good\ny,a dog,0,bad\n"
    dataset = load(tmp_path, "d.csv", content, text_column="Letter", label_column="mood")
    assert dataset.texts == ("a cat", "a dog")
    assert dataset.label_names == ("bad", "good")
    assert dataset.labels == (1, 0)


def test_a_text_column_may_bear_the_name_of_a_label(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.csv", "category,label\na cat,1\na dog,0\n", text_column="category")
    assert (dataset.texts, dataset.labels) == (("a cat", "a dog"), (1, 0))


def test_missing_text_column_lists_columns_and_options(tmp_path: Path) -> None:
    assert complaint(tmp_path, "d.csv", "from,to\na cat,a dog\n") == (
        "no text column found in d.csv; its columns: from, to; "
        "name it with --text-column (and the labels with --label-column)"
    )
    assert "its columns: none" in complaint(tmp_path, "d.jsonl", "{}\n")


@pytest.mark.parametrize("option", ["text_column", "label_column"])
def test_a_chosen_column_must_exist(tmp_path: Path, option: str) -> None:
    message = complaint(tmp_path, "d.csv", "text,label\na cat,1\n", **{option: "txet"})
    flag = "--" + option.replace("_", "-")
    assert message == f"d.csv has no column 'txet' for {flag}; its columns: text, label"


def test_a_txt_file_has_no_columns(tmp_path: Path) -> None:
    assert "has no columns" in complaint(tmp_path, "d.txt", "a cat\n", text_column="text")


def test_label_strings_are_numbered_in_sorted_order(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.csv", "text,label\na,spam\nb,ham\nc,spam\n")
    assert dataset.labels == (1, 0, 1)
    assert dataset.label_names == ("ham", "spam")
    assert dataset.num_labels == 2


def test_label_integers_stay_themselves(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.csv", "text,label\na,3\nb,1\n")
    assert dataset.labels == (3, 1)
    assert dataset.label_names == ("0", "1", "2", "3")


def test_negative_labels_are_numbered(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.csv", "text,label\na,1\nb,-1\nc,-10\n")
    assert dataset.labels == (2, 1, 0)
    assert dataset.label_names == ("-10", "-1", "1")


def test_json_labels_may_be_words_numbers_or_truth_values(tmp_path: Path) -> None:
    dataset = load(tmp_path, "d.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}\n')
    assert dataset.labels == (1, 0)
    assert dataset.label_names == ("false", "true")


def test_identifiers_are_not_taken_for_classes(tmp_path: Path) -> None:
    message = complaint(tmp_path, "d.csv", "text,target\na,123456789\n")
    assert message.startswith("label 123456789 in d.csv is too large for a class number")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=r"nowhere\.csv does not exist"):
        load_dataset(str(tmp_path / "nowhere.csv"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.txt", b"", "d.txt is empty"),
        ("d.csv", b" \n\n", "d.csv is empty"),
        ("d.txt", b"\xff\xfea\x00", "d.txt is not UTF-8 text (byte 0xff at position 0); save it as UTF-8"),
        (
            "d.csv",
            b"\xef\xbb\xbftext\ncaf\xe9!\n",
            "d.csv is not UTF-8 text (byte 0xe9 at position 11); save it as UTF-8",
        ),
        ("d.csv", b"text,label\n", "d.csv has no examples below its header"),
        ("d.csv", b'""\n', "d.csv has no examples below its header"),
        ("d.csv", b"text,label\na,1\nb\n", "line 3 of d.csv has 1 columns where the header has 2"),
        ("d.csv", b'text,label\n"a\nb",1\na, b,1\n', "line 4 of d.csv has 3 columns where the header has 2"),
        ("d.csv", b'text,label\na,1\n"b,1\n', "line 3 of d.csv is not valid CSV: unexpected end of data"),
        ("d.csv", b"text,label\na,1\n\n ,1\n", "line 4 of d.csv has an empty text in column 'text'"),
        ("d.csv", b"text,label\na,\n", "line 2 of d.csv has no label in column 'label'"),
        ("d.tsv", b"text\tlabel\na\t1\nb\n", "line 3 of d.tsv has 1 columns where the header has 2"),
        ("d.tsv", b"text\tlabel\n\t1\n", "line 2 of d.tsv has an empty text in column 'text'"),
        (
            "d.jsonl",
            b'{"text": "a"}\n\n{"text" "b"}\n',
            "line 3 of d.jsonl is not valid JSON: Expecting ':' delimiter at column 9",
        ),
        ("d.jsonl", b"[" * 100_000, "line 1 of d.jsonl is not JSON that can be read"),
        ("d.jsonl", b'["a"]\n', "line 1 of d.jsonl is not a JSON object with named columns"),
        ("d.jsonl", b'{"text": "a"}\n{"txt": "b"}\n', "line 2 of d.jsonl has no column 'text'"),
        ("d.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "line 2 of d.jsonl has no column 'label'"),
        ("d.jsonl", b'{"text": "a", "label": null}\n', "line 1 of d.jsonl has no label in column 'label'"),
        ("d.jsonl", b'{"text": " "}\n', "line 1 of d.jsonl has an empty text in column 'text'"),
        ("d.jsonl", b'{"text": 5}\n', "line 1 of d.jsonl holds no text in column 'text' but 5"),
        ("d.jsonl", b'{"text": "\\ud800"}\n', "line 1 of d.jsonl has a text that is not valid Unicode"),
        (
            "d.xlsx",
            b"PK",
            "d.xlsx has the extension '.xlsx', which is not supported; supported: .txt, .csv, .tsv, .jsonl",
        ),
        (
            "notes",
            b"a cat",
            "notes has the extension '', which is not supported; supported: .txt, .csv, .tsv, .jsonl",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert complaint(tmp_path, name, content) == message


def test_a_folder_is_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="is a folder; give one of the files in it"):
        load_dataset(str(tmp_path))
    (tmp_path / "odd.csv").mkdir()
    with pytest.raises(GradleakError, match=r"odd\.csv cannot be read"):
        load_dataset(str(tmp_path / "odd.csv"))


def test_columns_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text('text;label\nthe cat, of course;1\n"a; b";0\n', encoding="utf-8")
    found = load_dataset(str(path))
    assert found.texts == ("the cat, of course", "a; b")
    assert found.labels == (1, 0)
    path.write_text("text,a;b\nthe cat;1,x\n", encoding="utf-8")
    assert load_dataset(str(path)).texts == ("the cat;1",)
