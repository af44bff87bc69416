"""The script that makes the runs behind the tables."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def tables(results: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Make runs with a `python3` that prints its arguments, which end up in the run's log."""
    python = results.parent / "python3"
    python.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "benchmarks/tables.sh", "minilm", "data", str(results), "1", *names]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True)


def made(results: Path) -> list[str]:
    return sorted(path.stem for path in results.glob("*.log"))


def test_chosen_runs_are_made_with_all_their_parts(results: Path) -> None:
    done = tables(results, "lamp", "fet-tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert made(results) == ["fet-tiny.0", "fet-tiny.1", "fet-tiny.2", "fet-tiny.3", "lamp"]
    log = (results / "lamp.log").read_text(encoding="utf-8")
    assert log.startswith("benchmarks/leakage.py --model minilm --data data/cola.tsv --take 0:32 --attack lamp ")
    assert log.endswith(f" -o {results}/lamp.json\n")


def test_without_names_all_runs_are_made(results: Path) -> None:
    assert tables(results).returncode == 0
    assert {"grab-dropout", "lamp-bert-base", "grab-pairs.28", "edr-sst2.0"} <= set(made(results))


@pytest.mark.parametrize("names", [["lamp", "lmap", "grab-dropout"], ["lamp", "lmap"], ["lmap"]], ids=" ".join)
def test_a_misspelt_run_is_named_before_any_run_starts(results: Path, names: list[str]) -> None:
    done = tables(results, *names)
    assert (done.returncode, done.stderr) == (2, "no run named lmap\n")
    assert made(results) == []
