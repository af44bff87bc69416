from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from fake_records import audit_record

from gradleak.errors import GradleakError
from gradleak.reports.record import SCHEMA, read_record, write_private, write_record


def test_record_is_read_as_it_was_written_and_only_by_its_owner(tmp_path: Path) -> None:
    path, record = tmp_path / "audit.json", audit_record()
    write_record(path, record)
    assert read_record(path) == json.loads(json.dumps(record))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_file_that_others_could_read_is_private_after_writing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    os.chmod(path, 0o644)
    write_private(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "is not the record of an audit"),
        ('{"schema": 1, "attack": "lamp"}', "is not the record of an audit"),
        (json.dumps({"gradleak": "record", "schema": SCHEMA + 1, "kind": "audit"}), "was written by a newer gradleak"),
        (json.dumps({"gradleak": "record", "schema": SCHEMA, "kind": "cake"}), "has the kind 'cake'"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "audit.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(GradleakError, match=message) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="there is no file"):
        read_record(tmp_path / "none.json")
