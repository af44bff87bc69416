"""What the measurements of images send, schedule and bring back."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gradleak.vision.data import load_images

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


@pytest.fixture
def sample() -> np.ndarray:
    return load_images("cifar10-sample").pixels.permute(0, 2, 3, 1).numpy()


def test_packed_images_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sample: np.ndarray) -> None:
    packing = script("packed_images", monkeypatch)
    monkeypatch.setattr(packing, "PART", 40)
    labels = np.arange(128, dtype=np.uint8)
    np.savez(tmp_path / "whole.npz", train=sample, train_labels=labels, test=sample[:9], test_labels=labels[:9])
    packing.write_packed(tmp_path / "whole.npz", tmp_path / "packed")
    (tmp_path / "packed" / "train3.bz2").unlink()
    found = packing.read_packed(tmp_path / "packed")
    assert (found["test"] == sample[:9]).all()
    assert found["train"].shape == (120, 32, 32, 3)
    assert (found["train_labels"] == labels[:120]).all()
    error = np.square(found["train"].astype(float) - sample[:120]).mean()
    assert 10 * np.log10(255**2 / error) > 39


def test_the_most_important_stages_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = script("images_schedule", monkeypatch)
    listed = schedule.jobs(150, 280)
    assert [job.stage for job in listed[:3]] == ["generator", "attack:gi-gip:none", "attack:gi-gip:sign"]
    assert len({job.leaves for job in listed}) == len(listed)
    assert all(job.needs == "generator.safetensors" for job in listed if "gi-gip" in job.stage)


def test_results_are_packed_into_files_of_limited_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    schedule = script("images_schedule", monkeypatch)
    monkeypatch.setattr(schedule, "LARGEST", 2_000)
    for name in ("gi-gip-none", "size-500-lti0-sign", "size-500-lti-sign"):
        (tmp_path / f"scores-{name}.json").write_text(json.dumps({"psnr": 1.0, "rows": [0]}))
        np.save(tmp_path / f"found-{name}.npy", np.zeros(1_500, np.uint8))
    schedule.pack(tmp_path, tmp_path / "packed")
    runs = schedule.collected(tmp_path / "packed")
    assert {name: found is not None for name, (_, found) in runs.items()} == {
        "gi-gip-none": True,
        "size-500-lti-sign": True,
        "size-500-lti0-sign": False,
    }
    assert sorted(path.name for path in (tmp_path / "packed").iterdir()) == [
        "pictures0.npz",
        "pictures1.npz",
        "records.json",
    ]
