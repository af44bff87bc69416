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


def tables(results: Path, *names: str, said: str = "") -> subprocess.CompletedProcess[str]:
    """Make runs with a `python3` that prints its arguments and what is `said`, which end up in the run's log."""
    python = results.parent / "python3"
    python.write_text('#!/bin/sh\necho "$@"\necho "$SAID"\n', encoding="utf-8")
    python.chmod(0o755)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "benchmarks/tables.sh", "minilm", "data", str(results), "1", *names]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PATH": path, "SAID": said}, capture_output=True, text=True
    )


def made(results: Path) -> list[str]:
    return sorted(path.stem for path in results.glob("*.log"))


def test_chosen_runs_are_made_with_all_their_parts(results: Path) -> None:
    done = tables(results, "lamp", "fet-tiny")
    assert (done.returncode, done.stderr) == (0, "")
    assert made(results) == ["fet-tiny.0", "fet-tiny.1", "fet-tiny.2", "fet-tiny.3", "lamp"]
    log = (results / "lamp.log").read_text(encoding="utf-8")
    assert log.startswith("benchmarks/leakage.py --model minilm --data data/cola.tsv --take 0:32 --attack lamp:best ")
    assert log.endswith(f" -o {results}/lamp.json\n\n")


def test_runs_by_their_old_names_are_made_and_the_new_one_is_told(results: Path) -> None:
    done = tables(results, "fet-cola4-thorough", "lamp-no-polish")
    assert (done.returncode, done.stderr) == (
        0,
        "fet-cola4-thorough is now mosaic-cola4\nlamp-no-polish is now lamp-paper\n",
    )
    assert made(results) == ["lamp-paper", *(f"mosaic-cola4.{part}" for part in range(4))]
    assert "--attack mosaic:angles " in (results / "mosaic-cola4.3.log").read_text(encoding="utf-8")


def test_a_run_of_fewer_sentences_than_asked_for_is_named(results: Path) -> None:
    line = "fewer sentences than asked for: cola.tsv has 100 sentences, 4 of 96:128 are attacked"
    done = tables(results, "lamp", said=line)
    assert (done.returncode, done.stderr) == (0, f"lamp: {line}\n")


def test_without_names_all_runs_are_made(results: Path) -> None:
    assert tables(results).returncode == 0
    assert {"grab-dropout", "lamp-bert-base", "grab-pairs.28", "edr-sst2.0"} <= set(made(results))


@pytest.mark.parametrize("names", [["lamp", "lmap", "grab-dropout"], ["lamp", "lmap"], ["lmap"]], ids=" ".join)
def test_a_misspelt_run_is_named_before_any_run_starts(results: Path, names: list[str]) -> None:
    done = tables(results, *names)
    assert (done.returncode, done.stderr) == (2, "no run named lmap\n")
    assert made(results) == []
