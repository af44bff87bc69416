"""Readers of what gradleak has written itself, and anyone may have changed: records of audits, and rounds."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import zlib
from pathlib import Path

from mutation import mutated_json
from reader import Reader

from gradleak.cli import main
from gradleak.errors import GradleakError
from gradleak.reports.rounds import rounds_record

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from fake_records import audit_record, rounds_file


def write_rounds(folder: Path) -> list[bytes]:
    return [rounds_file(folder, rounds=2, clients=2).read_bytes()]


def write_records(folder: Path) -> list[bytes]:
    rounds = rounds_record(rounds_file(folder, rounds=2, clients=2), reveal=True)
    records = [audit_record(9, 3), audit_record(3, 2, reveal=True), rounds]
    return [json.dumps(record).encode() for record in records]


def draw_page(path: Path) -> None:
    """Draw the page of a file as `gradleak report` does, for every other content with the words."""
    page = path.parent / "page.html"
    words = ["--reveal"] if zlib.crc32(path.read_bytes()) % 2 else []
    with contextlib.redirect_stderr(io.StringIO()):
        code = main(["report", str(path), "-o", str(page), "-q", *words])
    for other in (page, path.parent / "audit.json"):
        if other != path:
            other.unlink(missing_ok=True)
    assert code in (0, 2), f"exit code {code}"
    if code:
        raise GradleakError("refused")


RESULT_READERS = (
    Reader("rounds", "rounds.jsonl", write_rounds, draw_page, mutated_json),
    Reader("record", "audit.json", write_records, draw_page, mutated_json),
)
