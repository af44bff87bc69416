"""Read datasets from the user's files: .txt, .csv, .tsv and .jsonl."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os.path
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from gradleak.data.columns import find_columns
from gradleak.data.dataset import Dataset
from gradleak.data.labels import label_as_text, number_labels
from gradleak.errors import GradleakError
from gradleak.files import read_bytes

Row: TypeAlias = tuple[int, Mapping[str, object]]  # line number, values by column
ReadRow: TypeAlias = Row | GradleakError  # an error for a row that is none


def load_file(
    path: Path, *, text_column: str | None = None, label_column: str | None = None, skip_bad: bool = False
) -> Dataset:
    """Read a dataset from a file, in the format of its extension.

    Args:
        path: The file.
        text_column: The column of the texts, if it does not have a usual name.
        label_column: The column of the labels, if it does not have a usual name.
        skip_bad: Leave out rows without a text or a label and count them, instead of raising an error.

    Raises:
        GradleakError: If the file cannot be read in this format.
    """
    extension = path.suffix.lower()
    if extension not in EXTENSIONS:
        raise GradleakError(
            f"{path} has the extension '{extension}', which is not supported; supported: {', '.join(EXTENSIONS)}"
        )
    content = _read(path)
    if extension == ".txt":
        if text_column or label_column:
            raise GradleakError(f"{path} has no columns: a .txt file holds one text a line and no labels")
        texts = tuple(line.strip() for line in _lines(content) if line.strip())
        return Dataset(str(path), texts, None, None, str(path))
    read = list(_READERS[extension](content, path))
    rows = [row for row in read if not isinstance(row, GradleakError)]
    bad = next((row for row in read if isinstance(row, GradleakError)), None)
    if bad is not None and not (skip_bad and rows):
        raise bad
    if not rows:
        raise GradleakError(f"{path} has no examples below its header")
    dataset = _from_rows(rows, path, text_column, label_column, skip_bad)
    return replace(dataset, skipped=len(read) - len(dataset))


def _from_rows(
    rows: list[Row], path: Path, text_column: str | None, label_column: str | None, skip_bad: bool
) -> Dataset:
    columns = list(dict.fromkeys(column for _, row in rows for column in row))
    text, label = find_columns(
        columns,
        lambda column: (row.get(column) for _, row in rows),
        str(path),
        text_column=text_column,
        label_column=label_column,
    )
    texts: list[str] = []
    named: list[str] = []
    for line, row in rows:
        place = f"line {line} of {path}"
        try:
            found = _text(row, text, place)
            named += [] if label is None else [_label(row, label, place)]
            texts.append(found)
        except GradleakError:
            if not skip_bad:
                raise
    if not texts:
        raise GradleakError(f"{path} has no row with a text in column '{text}'")
    if label is None:
        return Dataset(str(path), tuple(texts), None, None, str(path))
    labels, names = number_labels(named, str(path))
    return Dataset(str(path), tuple(texts), labels, names, str(path))


def _text(row: Mapping[str, object], column: str, place: str) -> str:
    value = _value(row, column, place)
    if not isinstance(value, str):
        raise GradleakError(f"{place} holds no text in column '{column}' but {json.dumps(value)[:40]}")
    if not value.strip():
        raise GradleakError(f"{place} has an empty text in column '{column}'")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can escape half a character
        raise GradleakError(f"{place} has a text that is not valid Unicode") from None
    return value.strip()


def _label(row: Mapping[str, object], column: str, place: str) -> str:
    label = label_as_text(_value(row, column, place))
    if label is None:
        raise GradleakError(f"{place} has no label in column '{column}'")
    return label


def _value(row: Mapping[str, object], column: str, place: str) -> object:
    if column not in row:
        raise GradleakError(f"{place} has no column '{column}'")
    return row[column]


def _read(path: Path) -> str:
    if not os.path.lexists(path):
        raise GradleakError(f"{path} does not exist")
    data = read_bytes(path)
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    try:
        content = data[len(mark) :].decode("utf-8")
    except UnicodeDecodeError as error:
        position = error.start + len(mark)
        raise GradleakError(
            f"{path} is not UTF-8 text (byte 0x{data[position]:02x} at position {position}); save it as UTF-8"
        ) from None
    if not content.strip():
        raise GradleakError(f"{path} is empty")
    return content


def _lines(content: str) -> list[str]:
    # Not splitlines(): it also breaks at characters that belong to a text, such as U+2028.
    return content.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _table(records: Iterator[tuple[int, list[str]]], path: Path) -> Iterator[ReadRow]:
    _, first = next(records, (0, []))
    header = [column.strip() for column in first]
    double = next((column for column in header if header.count(column) > 1), None)
    if double is not None:
        raise GradleakError(f"{path} has the column '{double}' more than once; give each column a name of its own")
    for line, cells in records:
        if len(cells) != len(header):
            yield GradleakError(f"line {line} of {path} has {len(cells)} columns where the header has {len(header)}")
        else:
            yield line, dict(zip(header, cells, strict=True))


def _read_tsv(content: str, path: Path) -> Iterator[ReadRow]:
    lines = enumerate(_lines(content), start=1)
    return _table(((number, line.split("\t")) for number, line in lines if line.strip(" ")), path)


def _read_csv(content: str, path: Path) -> Iterator[ReadRow]:
    return _table(_csv_records(content, path), path)


def _csv_records(content: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    # spreadsheets of many countries write semicolons, where the comma is part of numbers
    header = _lines(content)[0]
    delimiter = ";" if ";" in header and "," not in header else ","
    reader = csv.reader(io.StringIO(content, newline=""), strict=True, delimiter=delimiter)
    while True:
        line = reader.line_num + 1  # a quoted text may run over several lines: name the first
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise GradleakError(f"line {line} of {path} is not valid CSV: {error}") from None
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield line, cells


def _read_jsonl(content: str, path: Path) -> Iterator[ReadRow]:
    for number, line in enumerate(_lines(content), start=1):
        if line.strip():
            yield _json_row(number, line, path)


def _json_row(number: int, line: str, path: Path) -> ReadRow:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return GradleakError(f"line {number} of {path} is not valid JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError):  # a number or a nesting beyond what Python reads
        return GradleakError(f"line {number} of {path} is not JSON that can be read")
    if not isinstance(row, dict):
        return GradleakError(f"line {number} of {path} is not a JSON object with named columns")
    return number, row


_READERS: dict[str, Callable[[str, Path], Iterator[ReadRow]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
}
EXTENSIONS = (".txt", *_READERS)
