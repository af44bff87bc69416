"""The table of what is read of decoders' updates."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_every_row_is_measured_before_one_is_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    batches, decoders = (importlib.import_module(name) for name in ("batches", "decoders"))

    def item(row: str, size: int, number: int, texts: tuple[str, ...]) -> dict[str, object]:
        return {"row": row, "size": size, "number": number, "sentences": batches.Sentences(texts, (), 0, 2)}

    short = [item("lora-8", 1, number, ("Cat.",)) for number in range(3)]
    others = [item("lora-8", 4, 0, ("Dogs run.",) * 4), item("full", 1, 0, ("The king.",))]
    ordered = decoders.in_turn([*short, *others])
    assert [(one["row"], one["size"], one["number"]) for one in ordered] == [
        ("lora-8", 4, 0),
        ("full", 1, 0),
        ("lora-8", 1, 0),
        ("lora-8", 1, 1),
        ("lora-8", 1, 2),
    ]
