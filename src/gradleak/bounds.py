"""Bounds on every number and size that is read from outside, checked before it is used.

Each is far above what any real federation, model or study has, and far below what fills a machine.
"""

from __future__ import annotations

LARGEST_SEED = 2**32 - 1
MOST_CLASSES = 100_000
"""Classes of a classifier."""
MOST_STEPS = 1_000_000
"""Local steps or epochs of a client, and steps of an attack."""
MOST_CLIENTS = 1_000_000
LARGEST_BATCH = 1_000_000
LONGEST_NAME = 4_096
"""Characters of a name: of a model, a tensor, a column."""
MOST_CELLS = 1_000_000
"""Cells of a study."""
LARGEST_TEXT_FILE = 2**30
"""Bytes of a dataset."""
LARGEST_STUDY_FILE = 2**22
"""Bytes of the TOML text of a study."""
DEEPEST_NESTING = 100
"""Brackets within brackets in a study file."""
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
        raise ValueError(f"{number} is not from {least} to {most}")
    return number
