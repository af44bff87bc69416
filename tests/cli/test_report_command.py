"""`gradleak report` on files that anyone may have changed: one line, and no other file is touched."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gradleak.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from fake_records import audit_record, rounds_file

HEADER = {"gradleak": "rounds", "schema": 1, "framework": "f", "side": "server", "model": "\x1b[31m", "attack": "a"}
LOOK = {"round": 1, "client": 1, "status": "done"}
DAMAGED: dict[str, tuple[str, list[Any]]] = {
    "no model": ("rounds.jsonl", [{"gradleak": "rounds", "schema": 1}]),
    "sentences that are numbers": ("rounds.jsonl", [HEADER, LOOK | {"sentences": [1]}]),
    "a score in words": ("rounds.jsonl", [HEADER, LOOK | {"sentences": [{"scores": {"rougeL": "high"}}]}]),
    "no number": ("rounds.jsonl", [HEADER, LOOK | {"seconds": float("nan")}]),
    "no verdict": ("audit.json", [{"gradleak": "record", "schema": 1, "kind": "audit"}]),
    "settings without scores": ("audit.json", [audit_record(3, 2) | {"settings": [{"scores": {}}]}]),
    "sentences of no setting": ("audit.json", [audit_record(3, 2) | {"sentences": [{"setting": 99}]}]),
}


@pytest.mark.parametrize(("name", "lines"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, lines: list[Any]
) -> None:
    path = tmp_path / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    before = path.read_bytes()
    assert main(["report", str(path), "-o", str(tmp_path / "page.html")]) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert f"{name} is damaged and cannot be drawn" in found.err
    assert "\x1b" not in found.err
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_record_that_is_drawn_is_not_written_again(tmp_path: Path) -> None:
    assert main(["report", str(rounds_file(tmp_path)), "-o", str(tmp_path / "page.html"), "-q", "--reveal"]) == 0
    record = tmp_path / "audit.json"
    before = record.read_bytes()
    assert main(["report", str(record), "-o", str(tmp_path / "page.html"), "-q"]) == 0
    assert record.read_bytes() == before


def test_rounds_do_not_replace_the_record_of_an_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "audit.json"
    record.write_text(json.dumps(audit_record(3, 2)), encoding="utf-8")
    before = record.read_bytes()
    assert main(["report", str(rounds_file(tmp_path)), "-o", str(tmp_path / "page.html")]) == 2
    assert "is the record of another audit and is not overwritten" in capsys.readouterr().err
    assert record.read_bytes() == before
    assert not (tmp_path / "page.html").exists()
