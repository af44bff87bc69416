"""FLARE's own simulator runs the example job: server and clients audit it, and a client may blank its update."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare-text"
sys.path.insert(0, str(EXAMPLE))

from text_model import TinyClassifier, own_texts  # noqa: E402 - the example is no package


def run_job(folder: Path, *options: str) -> Path:
    """Run the example in the simulator, and return where it wrote."""
    command = [sys.executable, str(EXAMPLE / "job.py"), "--directory", str(folder / "audit"), "--rounds", "1"]
    command += ["--workspace", str(folder / "workspace"), "--budget", "20s", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *sys.path])}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return folder


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[1:]]


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = (folder / "workspace").rglob("FL_global_model.pt")
    loaded = torch.load(path, weights_only=False)
    return {name: torch.as_tensor(np.asarray(value)) for name, value in loaded["model"].items()}


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_job(tmp_path_factory.mktemp("passed"))


def test_the_server_names_what_sites_trained_on(passed: Path) -> None:
    records = records_of(passed / "audit" / "server")
    assert {(record["client"], record["status"]) for record in records} == {("site-1", "done"), ("site-2", "done")}
    proven = [record for record in records if record["verified"]]
    assert proven
    for record in proven:
        read = {sentence["reconstruction"] for sentence in record["sentences"]}
        assert read == {text.lower() for text in own_texts(record["client"], 0)}


def test_sites_score_their_own_updates_and_send_them(passed: Path) -> None:
    records = records_of(passed / "audit" / "clients")
    assert {record["client"] for record in records} == {"site-1", "site-2"}
    for record in records:
        told = [s["reference"] for s in record["sentences"] if s["reference"]]
        assert told == own_texts(record["client"], 0)
        assert not record["refused"]
    assert 100 in [s["scores"]["exact"] for record in records for s in record["sentences"] if s["scores"]]
    before = TinyClassifier().state_dict()
    after = final_weights(passed)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_an_update_that_gives_text_away_is_blanked(tmp_path: Path) -> None:
    run_job(tmp_path, "--refuse-above", "rougeL=20")
    assert all(record["refused"] for record in records_of(tmp_path / "audit" / "clients"))
    before, after = TinyClassifier().state_dict(), final_weights(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before), "nothing of the training arrived"
    errors = [str(record["error"]) for record in records_of(tmp_path / "audit" / "server")]
    assert all("nothing was trained" in error for error in errors)
