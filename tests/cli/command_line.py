"""What the tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradleak.cli import main
from gradleak.targets import Target

TEXT = "the cat sat on the mat"


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Answer]


def runner(capsys: pytest.CaptureFixture[str], *always: str) -> Run:
    """Return a function that runs a command in this process, with some options always given."""

    def run(command: str, *arguments: str | Path) -> Answer:
        capsys.readouterr()  # what came before is not the command's
        code = main([command, *always, *map(str, arguments)])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


def save_model(target: Target, folder: Path) -> str:
    """Save a small target as a directory that `--model` takes."""
    target.model.save_pretrained(folder)  # type: ignore[operator]
    target.tokenizer.save_pretrained(folder)
    return str(folder)


def read(path: Path) -> dict[str, Any]:
    """Read a JSON file, and refuse NaN in it."""

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return content


def without_seconds(record: Any) -> Any:
    """Return a record without what differs from run to run."""
    if isinstance(record, dict):
        return {key: without_seconds(value) for key, value in record.items() if key != "seconds"}
    return [without_seconds(item) for item in record] if isinstance(record, list) else record
