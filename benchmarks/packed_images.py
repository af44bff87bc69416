"""CIFAR-10 small enough to be sent to a GPU machine: test images exact, training images within 1 % of a pixel's range.

    python benchmarks/packed_images.py cifar10.npz packed

Training images are rounded in the frequency domain: 8 × 8 cosine coefficients of three orthogonal colour components, to
multiples of `STEP` grey levels. That leaves 39.7 dB, and 0.7 kB of each image after bzip2. `read_packed` takes as many
parts of the training images as there are in the folder.
"""

from __future__ import annotations

import bz2
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from scipy.fft import dctn, idctn

STEP, BLOCK, SIZE = 12, 8, 32
PART = 12_500  # training images in a file
TEST = 1_000
_COLOURS = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]], np.float32)
COLOURS = _COLOURS / np.linalg.norm(_COLOURS, axis=1, keepdims=True)


def packed(images: np.ndarray) -> bytes:
    """Return images `[images, 32, 32, 3]` as compressed coefficients, one frequency after the other."""
    blocks = SIZE // BLOCK
    colours = (images.astype(np.float32) - 128) @ COLOURS.T
    coefficients = dctn(colours.reshape(-1, blocks, BLOCK, blocks, BLOCK, 3), axes=(2, 4), norm="ortho")
    whole = np.rint(coefficients / STEP).astype(np.int16)
    planes = whole.transpose(5, 2, 4, 0, 1, 3).reshape(-1, images.shape[0] * blocks**2)
    # Mean brightness alone needs more than a byte.
    return bz2.compress(planes[0].tobytes() + planes[1:].clip(-128, 127).astype(np.int8).tobytes())


def unpacked(data: bytes) -> np.ndarray:
    """Return the images `[images, 32, 32, 3]` that were packed."""
    raw, blocks = bz2.decompress(data), SIZE // BLOCK
    frequencies = 3 * BLOCK**2
    places = len(raw) // (frequencies + 1)
    first = np.frombuffer(raw, np.int16, places)
    others = np.frombuffer(raw, np.int8, offset=2 * places).reshape(frequencies - 1, places)
    planes = np.concatenate([first[None].astype(np.float32), others.astype(np.float32)]) * STEP
    coefficients = planes.reshape(3, BLOCK, BLOCK, -1, blocks, blocks).transpose(3, 4, 1, 5, 2, 0)
    colours = idctn(coefficients, axes=(2, 4), norm="ortho").reshape(-1, SIZE, SIZE, 3)
    return np.rint(colours @ COLOURS + 128).clip(0, 255).astype(np.uint8)


def write_packed(source: Path, folder: Path) -> None:
    """Write the parts of a file made by `training/cifar10_sheets.py`."""
    data = np.load(source)
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = data["test"][:TEST], data["test_labels"][:TEST]
    np.savez_compressed(folder / "test.npz", test=images, test_labels=labels, train_labels=data["train_labels"])
    train = data["train"]
    for number, start in enumerate(range(0, len(train), PART)):
        part = train[start : start + PART]
        path = folder / f"train{number}.bz2"
        path.write_bytes(packed(part))
        error = (unpacked(path.read_bytes()).astype(np.float32) - part).__pow__(2).mean()
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, {10 * np.log10(255**2 / error):.1f} dB", flush=True)


def read_packed(folder: Path) -> dict[str, np.ndarray]:
    """Return `train`, `train_labels`, `test` and `test_labels` of the parts in a folder, in the order of their names.

    The parts must be the first ones, without a gap.
    """
    names = [folder / f"train{number}.bz2" for number in range(len(list(folder.glob("train*.bz2"))))]
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(lambda name: unpacked(name.read_bytes()), names))
    found = dict(np.load(folder / "test.npz"))
    train = np.concatenate(parts)
    return found | {"train": train, "train_labels": found["train_labels"][: len(train)]}


if __name__ == "__main__":
    write_packed(Path(sys.argv[1]), Path(sys.argv[2]))
