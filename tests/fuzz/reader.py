"""What a fuzz target is: a reader of one kind of file, with examples to mutate."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mutation import mutated

from gradleak.errors import GradleakError
from gradleak.targets import Target


@dataclass(frozen=True)
class Reader:
    """A reader of one kind of file.

    Attributes:
        name: of the kind.
        file: name of the file that it reads.
        examples: writes sound files into a folder, and returns their contents.
        read: reads a file of the folder, and uses what it holds as a command would.
        mutate: changes a content.
    """

    name: str
    file: str
    examples: Callable[[Path], list[bytes]]
    read: Callable[[Path], None]
    mutate: Callable[[bytes, random.Random], bytes] = field(default=mutated)

    def try_reading(self, path: Path) -> bool:
        """Return whether the file was read; False if it was refused."""
        try:
            self.read(path)
        except GradleakError as error:
            line = str(error)
            assert len(line) < 100_000, "a message is for people"
            return False
        return True


@cache
def small() -> Target:
    """Return a classifier of a few thousand parameters, and keep it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import small_target

    return small_target("bert")
