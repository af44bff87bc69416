"""What every defense shares, and how the command line names one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Update


@dataclass(frozen=True)
class Defense(ABC):
    """Base of all defenses.

    A subclass gives its name, one line of summary, what its value is in words (empty for a defense without one),
    which values are allowed, and writes `apply`.

    Attributes:
        value: the strength.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[str]

    value: float

    def __post_init__(self) -> None:
        if not self.allows(self.value):
            raise _wrong_value(type(self), f"{self.value:g}")

    def __str__(self) -> str:
        if not self.takes:
            return self.name
        short = f"{self.value:g}"
        return f"{self.name}:{short if float(short) == self.value else repr(self.value)}"

    @classmethod
    @abstractmethod
    def allows(cls, value: float) -> bool:
        """Tell whether the value makes sense; NaN must not."""

    @abstractmethod
    def apply(self, update: Update, generator: torch.Generator) -> Update:
        """Return the update as it is sent under this defense; the original stays as it is.

        Args:
            update: what the client would send.
            generator: a generator on the CPU, so that every device gets the same random numbers.
        """


DEFENSES: dict[str, type[Defense]] = {}


def register(defense: type[Defense]) -> type[Defense]:
    """Class decorator: make a defense known by its name."""
    DEFENSES[defense.name] = defense
    return defense


def parse_defense(text: str) -> Defense:
    """Return the defense that `NAME:VALUE` stands for (`NAME` alone if it takes no value)."""
    name, colon, number = (part.strip() for part in text.partition(":"))
    if name not in DEFENSES:
        raise unknown_name("defense", name, DEFENSES)
    kind = DEFENSES[name]
    if not kind.takes:
        if colon:
            raise GradleakError(f"defense {name} takes no value; write '{name}'")
        return kind()  # type: ignore[call-arg]  # such a defense has a default
    if not number:
        raise GradleakError(f"defense {name} needs a value: {name}:VALUE with {kind.takes}")
    try:
        value = float(number)
    except ValueError:
        raise _wrong_value(kind, number) from None
    return kind(value)


def defend(update: Update, defenses: Iterable[Defense], generator: torch.Generator) -> Update:
    """Return the update after all defenses, in the order given."""
    for defense in defenses:
        update = defense.apply(update, generator)
    return update


def defense_stream(seed: int) -> torch.Generator:
    """Return the random stream of the defenses of a run.

    Client and attack have streams made from the same seed; equal seeds would give the attack's first guess the very
    numbers that were added to the update.
    """
    digest = hashlib.sha256(f"defenses {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def _wrong_value(kind: type[Defense], found: str) -> GradleakError:
    return GradleakError(f"defense {kind.name} takes {kind.takes or 'no value'}, not '{found}'")
