"""Checks of a model's folder before Hugging Face reads it: ordinary files, safetensors alone, numbers within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradleak.bounds import (
    LARGEST_CONFIG_FILE,
    LARGEST_OF_CONFIG,
    MOST_CLASSES,
    MOST_LAYERS,
    NEW_WEIGHTS,
    WEIGHTS_PER_BYTE,
    numbers_in,
)
from gradleak.errors import GradleakError
from gradleak.files import check_ordinary, read_bytes
from gradleak.printable import quoted

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
SAFE = ".safetensors"


def check_folder(folder: Path) -> None:
    """Raise a GradleakError if a file of the folder would wait or never end, or its configuration makes no sense."""
    for path in folder.iterdir():
        if not path.is_dir():
            check_ordinary(path)
    if (folder / CONFIG).is_file():
        check_config(read_json(folder / CONFIG), folder / CONFIG)


def check_config(config: Mapping[str, Any], path: Path) -> None:
    """Raise a GradleakError if a number of a configuration is not within its bounds.

    Hugging Face makes a name for each class as soon as it reads the number of classes.
    """
    classes = config.get("num_labels", 0)
    named = config.get("id2label")
    count = max(classes if isinstance(classes, int) else 0, len(named) if isinstance(named, dict) else 0)
    if count > MOST_CLASSES:
        raise GradleakError(f"{path} speaks of {count:,} classes; {MOST_CLASSES:,} are the most")
    layers = max(_layers_in(config), default=0)
    if layers > MOST_LAYERS:
        raise GradleakError(f"{path} speaks of {layers:,} layers; {MOST_LAYERS:,} are the most")
    if any(abs(number) > LARGEST_OF_CONFIG for number in numbers_in(dict(config))):
        raise GradleakError(f"{path} holds a number above {LARGEST_OF_CONFIG:,}")


def _layers_in(config: object) -> Iterator[int]:
    """Yield every whole number of a configuration that may count layers, or groups of them, under any name."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            if isinstance(value, Mapping):
                yield from _layers_in(value)
            elif isinstance(value, list | tuple):
                yield len(value) if "layer" in str(name) else 0
                for part in value:
                    yield from _layers_in(part)
            elif isinstance(value, int) and ("layer" in str(name) or "group" in str(name)):
                yield value


def check_weights(count: int, folder: Path) -> None:
    """Raise a GradleakError if a folder's files cannot hold the weights that its configuration speaks of.

    Args:
        count: weights of the configured model.
        folder: of its files.
    """
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    if count > WEIGHTS_PER_BYTE * size + NEW_WEIGHTS:
        raise GradleakError(
            f"{folder / CONFIG} speaks of {count:,} weights; the files of its folder have {size:,} bytes"
        )


def refuse_pickled_shards(index: Path, refused: str) -> None:
    """Raise a GradleakError if an index of safetensors names other files, which torch would unpickle.

    Args:
        index: the file that says which weights are where.
        refused: what is done with pickles, in words.
    """
    content = read_json(index)
    weights = content.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise GradleakError(f"{index} has no weight_map of names and files")
    for name in sorted(set(weights.values())):
        if Path(name).name != name:
            raise GradleakError(f"{index} names '{quoted(name)}', which is not in its folder")
        if not name.endswith(SAFE):
            raise GradleakError(f"{index} names '{quoted(name)}': pickled weights can run code and are {refused}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        GradleakError: if the file cannot be read, is too large, or holds no JSON object.
    """
    try:
        content = json.loads(read_bytes(path, LARGEST_CONFIG_FILE))
    except (ValueError, RecursionError) as error:
        if isinstance(error, GradleakError):
            raise
        raise GradleakError(f"{path} is not valid JSON: {quoted(str(error))}") from None
    if not isinstance(content, dict):
        raise GradleakError(f"{path} holds no JSON object")
    return content
