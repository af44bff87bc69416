"""Bounds on every number and size that is read from outside, checked before it is used.

Each is far above what any real federation, model or study has, and far below what fills a machine.
"""

from __future__ import annotations

from collections.abc import Iterator

LARGEST_SEED = 2**32 - 1
"""Of the command line and of studies; from Python, and so in update files, torch's own bound holds."""
LARGEST_TORCH_SEED = 2**64 - 1
MOST_CLASSES = 100_000
"""Classes of a classifier."""
MOST_STEPS = 1_000_000
"""Local steps of a client."""
MOST_CLIENTS = 1_000_000
LARGEST_RANK = 2**16
"""Of a LoRA adapter."""
MOST_UNITS = 2**20
"""Of a layer of an inverter or a generator."""
LARGEST_IMAGE = 4_096
"""Pixels of an image's height and width."""
LARGEST_IMAGE_SET = 2**33
"""Bytes of an array of images."""
LARGEST_WHOLE = 10**12
"""Of any other whole number."""
LARGEST_NUMBER = 1e30
"""Of any other number: it and its products with ordinary ones are finite in float32."""
SMALLEST_RATE = 1e-30
"""Of a learning rate, by which differences of weights are divided."""
LARGEST_ENTRY = 1e12
"""Of an update's gradient: sums of squares over a whole model are finite in float32."""
LARGEST_OF_CONFIG = 2**31
"""Of a whole number in a model's configuration, such as its vocabulary or its context."""
MOST_LAYERS = 1_024
"""Of a model: each is built before a single weight is read."""
WEIGHTS_PER_BYTE, NEW_WEIGHTS = 8, 2**25
"""Of a model's files: at most so many weights in a byte, and so many that are in no file, such as a new classifier."""
LONGEST_NAME = 4_096
"""Characters of a name or path."""
MOST_CELLS = 1_000_000
"""Cells of a study."""
LARGEST_TEXT_FILE = 2**30
"""Bytes of a dataset."""
LARGEST_STUDY_FILE = 2**22
"""Bytes of the TOML text of a study."""
LARGEST_CONFIG_FILE = 2**24
"""Bytes of a JSON file that describes a model or an adapter."""
MOST_DIGITS = 400
"""Digits of a number."""


def whole_number(text: str, least: int, most: int) -> int:
    """Return the whole number that a text holds.

    Raises:
        ValueError: if it holds none, or one that is not within the bounds.
    """
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    number = int(text)
    if not least <= number <= most:
        raise ValueError(f"{text.strip()} is not from {least} to {most}")
    return number


def numbers_in(value: object) -> Iterator[int]:
    """Yield every whole number in a JSON value, at any depth."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, int):
            yield item
