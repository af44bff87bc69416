"""What the tests of audits share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dictionary_attack import SENTENCES

from conftest import small_target


def save_model(folder: Path) -> str:
    target = small_target("bert")
    target.model.save_pretrained(folder)  # type: ignore[operator]
    target.tokenizer.save_pretrained(folder)
    return str(folder)


def save_rows(path: Path, count: int = 12, header: str = "text,label") -> str:
    lines = [f"{SENTENCES[number % len(SENTENCES)]},{number % 2}" for number in range(count)]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return str(path)


def options(folder: Path, *further: str) -> list[str]:
    """Return a command that audits a small model with the quick attack."""
    model, data = folder / "model", folder / "clients.csv"
    if not model.exists():
        save_model(model)
    if not data.exists():
        save_rows(data)
    return [
        *("audit", "--model", str(model), "--data", str(data), "--attack", "dictionary", "--device", "cpu"),
        *("--budget", "10m", "--output", str(folder / "audit"), *further),
    ]


def steady(record: Any) -> Any:
    """Return a record without what differs from run to run: times."""
    if isinstance(record, Mapping):
        times = ("seconds", "finished_at", "machine", "out_of_time")
        return {key: steady(value) for key, value in record.items() if key not in times}
    if isinstance(record, list):
        return [steady(item) for item in record]
    return record
