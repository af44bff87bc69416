"""Update files from anywhere: whatever is in them, one line says what is wrong, before a number of theirs is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gradleak.errors import GradleakError
from gradleak.exchange import Update
from gradleak.federation import Client
from gradleak.targets import Target

TEXT = "the cat sat on the mat"


@pytest.fixture
def update(bert: Target) -> Update:
    return Client(bert).update([TEXT], [1])


DIFFERENCE = {"kind": "difference", "learning_rate": "0.1", "steps": "2"}
TARGET = {
    f"target.{key}": value
    for key, value in {
        "name": "tiny",
        "task": "classification",
        "num_labels": "2",
        "seed": "0",
        "fingerprint": "f",
    }.items()
}
METADATA = {
    "rate nan": DIFFERENCE | {"learning_rate": "nan"},
    "rate inf": DIFFERENCE | {"learning_rate": "inf"},
    "rate denormal": DIFFERENCE | {"learning_rate": "1e-320"},
    "rate huge": DIFFERENCE | {"learning_rate": "1e300"},
    "rate zero": DIFFERENCE | {"learning_rate": "0"},
    "rate text": DIFFERENCE | {"learning_rate": "\x1b[31m"},
    "steps of 400 digits": DIFFERENCE | {"steps": "9" * 400},
    "steps of 5,000 digits": DIFFERENCE | {"steps": "9" * 5_000},
    "no steps": {"kind": "difference", "learning_rate": "0.1"},
    "steps 0": DIFFERENCE | {"steps": "0"},
    "beta": DIFFERENCE | {"training.beta1": "1"},
    "unknown setting": DIFFERENCE | {"training.magic": "1"},
    "clients": {"clients": "9" * 30},
    "no clients": {"clients": "0"},
    "send": {"send": "\x00"},
    "kind": {"kind": "weights"},
    "a billion classes": TARGET | {"target.num_labels": "1000000000"},
    "classes below 0": TARGET | {"target.num_labels": "-1"},
    "seed": TARGET | {"target.seed": "1" * 40},
    "rank": TARGET | {"target.lora": "r=1000000000"},
    "name": TARGET | {"target.name": "x" * 100_000},
    "no task": {"target.name": "tiny"},
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA)
def test_metadata_that_make_no_sense_are_one_short_line(tmp_path: Path, metadata: dict[str, str]) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "u.safetensors", metadata=metadata)
    with pytest.raises(GradleakError, match="has metadata that make no sense") as refused:
        Update.load(tmp_path / "u.safetensors")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "dtype",
    [torch.complex64, torch.bool, torch.int64, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2],
    ids=lambda dtype: str(dtype),
)
def test_tensors_that_are_no_floats_are_refused(bert: Target, update: Update, dtype: torch.dtype) -> None:
    name = "classifier.weight"
    odd = update.with_tensors(update.tensors | {name: update.tensors[name].to(dtype)})
    with pytest.raises(GradleakError, match=r"'classifier\.weight' holds .*; gradients are floats of 16 to 64 bits"):
        odd.check(bert)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1e38), (torch.float64, 1e200), (torch.float64, 1e20)])
def test_numbers_that_overflow_in_an_attack_are_refused(
    bert: Target, update: Update, dtype: torch.dtype, factor: float
) -> None:
    huge = update.with_tensors({name: tensor.to(dtype) * factor for name, tensor in update.tensors.items()})
    with pytest.raises(GradleakError, match=r"holds NaN or Inf|stands for gradients above 1e\+12"):
        huge.check(bert)


def test_a_difference_that_a_tiny_rate_makes_huge_is_refused(bert: Target, update: Update) -> None:
    difference = Update(update.tensors, "difference", learning_rate=1e-29, steps=1, origin=update.origin)
    with pytest.raises(GradleakError, match="stands for gradients above"):
        difference.check(bert)


def test_a_pipe_is_no_update(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GradleakError, match="pipe is no ordinary file"):
        Update.load(tmp_path / "pipe")


def test_an_update_is_its_owners_alone_and_replaces_no_link(tmp_path: Path, update: Update) -> None:
    update.save(tmp_path / "u.safetensors")
    assert (tmp_path / "u.safetensors").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "u.safetensors")
    with pytest.raises(GradleakError, match="is a link"):
        update.save(tmp_path / "link")
