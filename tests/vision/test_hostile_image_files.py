"""Image sets and networks of others: one line, whatever they speak of, and no memory for what is not in them."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gradleak.errors import GradleakError
from gradleak.vision.data import load_images
from gradleak.vision.generator import Generator
from gradleak.vision.generator_storage import load_generator, save_generator
from gradleak.vision.inverter_settings import ImageInverterSettings
from gradleak.vision.inverter_storage import ImageCard, choose_image_inverter
from gradleak.vision.target import load_image_target

PIXELS = np.zeros((2, 8, 8, 3), dtype=np.uint8)


def archive(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"{path}:test"


def header(path: Path, shape: str) -> str:
    """Write an archive whose array says that it has another shape than its data."""
    words = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("test.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words.encode() + b"abc")
    return f"{path}:test"


@pytest.mark.parametrize("shape", ["(1000000, 1000, 1000, 3)", "(-1, 8, 8, 3)", "(2, 8, 8, 3)"])
def test_an_array_that_is_not_in_the_file_takes_no_memory(tmp_path: Path, shape: str) -> None:
    with pytest.raises(GradleakError, match="is damaged: its header speaks of"):
        load_images(header(tmp_path / "a.npz", shape))


@pytest.mark.parametrize("labels", [np.zeros(3, dtype=int), np.zeros(2), np.array(["a", "b"]), np.zeros((2, 1), int)])
def test_labels_that_are_no_classes_are_refused(tmp_path: Path, labels: Any) -> None:
    with pytest.raises(GradleakError, match="must be a whole number for each of 2 images"):
        load_images(archive(tmp_path / "a.npz", test=PIXELS, test_labels=labels))


def test_what_is_no_archive_is_one_line_and_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(GradleakError, match=r"a\.npz cannot be read"):
        load_images(f"{tmp_path / 'a.npz'}:test")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(GradleakError, match="is no ordinary file"):
        load_images(f"{tmp_path / 'pipe.npz'}:test")


def test_a_picture_that_is_cut_off_or_too_large_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(file, format="png")
    (tmp_path / "a.png").write_bytes(file.getvalue()[:45])
    with pytest.raises(GradleakError, match="cannot be read as an image"):
        load_images(str(tmp_path))
    Image.new("RGB", (5_000, 1)).save(tmp_path / "a.png")
    with pytest.raises(GradleakError, match="has 5000 × 1 pixels; at most 4096 a side"):
        load_images(str(tmp_path))


CARD: dict[str, Any] = {
    "origin": {"name": "lenet", "task": "image-classification", "num_labels": 10, "seed": 1234, "fingerprint": "f"},
    "settings": {name: getattr(ImageInverterSettings(), name) for name in ImageInverterSettings.__dataclass_fields__},
    "defenses": [],
    "rounds": 1,
    "examples": 4,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": 1},
        {"origin": CARD["origin"] | {"fingerprint": 1}},
        {"settings": CARD["settings"] | {"images": "one"}},
        {"settings": CARD["settings"] | {"hidden": ["wide"]}},
        {"rounds": 10**9},
        {"defenses": [1]},
        {"examples": None},
    ],
)
def test_a_card_that_makes_no_sense_is_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert ImageCard.from_json(json.dumps(CARD)).rounds == 1
    metadata = {"format": "gradleak-image-inverter", "card": json.dumps(CARD | changes)}
    save_file({"x": torch.zeros(1)}, tmp_path / "image-inverter.safetensors", metadata=metadata)
    with pytest.raises(GradleakError, match="is damaged"):
        choose_image_inverter(tmp_path, load_image_target("lenet"), 1, None)


def test_networks_wider_than_their_file_take_no_memory(tmp_path: Path) -> None:
    target = load_image_target("lenet")
    origin = CARD["origin"] | {"fingerprint": target.fingerprint}
    settings = CARD["settings"] | {"width": 10**6, "hidden": [10**6]}
    metadata = {
        "format": "gradleak-image-inverter",
        "card": json.dumps(CARD | {"origin": origin, "settings": settings}),
    }
    save_file({"x": torch.zeros(1)}, tmp_path / "image-inverter.safetensors", metadata=metadata)
    with pytest.raises(GradleakError, match="is damaged: Error"):
        choose_image_inverter(tmp_path, target, 1, ())
    metadata = {"format": "gradleak-generator", "width": str(2**20), "latent": str(2**20)}
    save_file({"x": torch.zeros(1)}, tmp_path / "g.safetensors", metadata=metadata)
    with pytest.raises(GradleakError, match="is damaged: Error"):
        load_generator(str(tmp_path / "g.safetensors"), target)


def test_a_generator_is_read_as_it_was_written(tmp_path: Path) -> None:
    generator = Generator(2, 3)
    save_generator(generator, tmp_path / "g.safetensors", "small")
    loaded, notes = load_generator(str(tmp_path / "g.safetensors"), load_image_target("lenet"))
    assert notes == ("generator: small",)
    assert all(
        torch.equal(a.half(), b.half()) for a, b in zip(generator.parameters(), loaded.parameters(), strict=True)
    )
