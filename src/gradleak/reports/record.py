"""The record of an audit, audit.json: everything that its page shows, in a schema with a version.

    {"gradleak": "record", "schema": 1, "kind": "audit", "verdict": {…}, "settings": […], …}

`kind` says what was measured: `audit` a training setup under simulated clients, `study` the settings of a study,
`rounds` a running federation. docs/audit.md lists the keys. No key is renamed later.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gradleak.errors import GradleakError
from gradleak.files import OWNER_ONLY, STDOUT, read_bytes, write_atomically
from gradleak.printable import escaped_json, quoted

SCHEMA = 1
MARK = "record"
KINDS = ("audit", "study", "rounds")
AUDIT_FILE, PAGE_FILE, STORE_FILE, ROUNDS_FILE = "audit.json", "report.html", "study.db", "rounds.jsonl"
LARGEST_RECORD = 64 * 2**20

Record = dict[str, Any]
"""The content of audit.json."""


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        GradleakError: if there is no such file, it is no record, or a newer gradleak wrote it.
    """
    if not path.exists():
        raise GradleakError(f"there is no file {path}")
    text = read_bytes(path, LARGEST_RECORD)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise GradleakError(f"{path} is not the record of an audit: it is no JSON") from None
    return checked(content, path)


def checked(content: object, path: Path) -> Record:
    """Return the content of a file as a record; raise a GradleakError if it is none that can be drawn."""
    if not isinstance(content, dict) or content.get("gradleak") != MARK:
        raise GradleakError(f"{path} is not the record of an audit (gradleak audit writes one)")
    schema = content.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise GradleakError(
            f"{path} was written by a newer gradleak (schema {schema}, here {SCHEMA}): pip install --upgrade gradleak"
        )
    if content.get("kind") not in KINDS:
        raise GradleakError(f"{path} has the kind {quoted(repr(content.get('kind')))}; known: {', '.join(KINDS)}")
    return content


def write_record(path: Path, record: Record) -> None:
    """Write a record atomically; only its owner may read it."""
    write_private(path, escaped_json(json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a text file atomically, or to standard output for `-`; only its owner may read it, though it was there."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    if path != STDOUT:
        path.chmod(OWNER_ONLY)
