"""The base class of defenses, their registry, and the parser of `NAME:VALUE`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from gradleak.errors import GradleakError, unknown_name
from gradleak.exchange import Update

Memory = dict[str, Any]
"""State of a client's defenses from one round to the next."""


@dataclass(frozen=True)
class Defense(ABC):
    """Base of all defenses.

    A subclass is a frozen dataclass whose fields are its numbers, in the order in which they are written after the
    name. It defines the class attributes below, checks its numbers in `is_sensible`, and writes `apply`.

    Attributes:
        name: its name on the command line.
        summary: one line on what is sent.
        takes: what its numbers are, in words; empty for a defense without any.
        per_example: whether it needs the update of each example, see `apply_examples`.
        by_tensor: whether it changes each tensor independently of the others.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[str]
    per_example: ClassVar[bool] = False
    by_tensor: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.is_sensible():
            raise self._refused(",".join(f"{number:g}" for number in astuple(self)))

    def __str__(self) -> str:
        numbers = ",".join(map(_written, astuple(self)))
        return f"{self.name}:{numbers}" if numbers else self.name

    @abstractmethod
    def is_sensible(self) -> bool:
        """Return whether the numbers are in their ranges; NaN must not be."""

    @abstractmethod
    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Return the update after this defense, as a new object.

        Args:
            update: what the client would send.
            generator: a generator on the CPU, which draws the same numbers whatever the device of the update.
            memory: this defense's state from earlier rounds, changed in place; None for no state.
        """

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the updates of many clients after this defense, each defended independently.

        By default they go through `apply` one by one; a defense that can change them all in one pass overrides this.

        Args:
            tensors: what the clients would send, by name `[clients, *shape]`.
            generator: on any device.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        stream = torch.Generator().manual_seed(seed)
        count = len(next(iter(tensors.values())))
        sent = [self.apply(Update({n: t[i] for n, t in tensors.items()}), stream).tensors for i in range(count)]
        return {name: torch.stack([update[name] for update in sent]) for name in tensors}

    def apply_examples(
        self, updates: Iterable[Update], generator: torch.Generator, memory: Memory | None = None
    ) -> Update:
        """Return the batch's update under a defense that is `per_example`.

        Args:
            updates: what the client would send for each example alone; iterated once, which keeps only one in memory.
            generator: see `apply`, like `memory`.
            memory: see `apply`.
        """
        raise GradleakError(f"defense {self.name} changes the update of a batch, not those of its examples")

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse the numbers of this defense, such as `1,0.01`."""
        count = len(fields(cls))
        if not count and text:
            raise GradleakError(f"defense {cls.name} takes no value; write '{cls.name}'")
        if count and not text:
            raise GradleakError(f"defense {cls.name} needs a value: {cls.name}:VALUE with {cls.takes}")
        try:
            numbers = [float(part) for part in text.split(",")] if text else []
        except ValueError:
            raise cls._refused(text) from None
        if len(numbers) != count:
            raise cls._refused(text)
        return cls(*numbers)

    @classmethod
    def _refused(cls, found: str) -> GradleakError:
        return GradleakError(f"defense {cls.name} takes {cls.takes}, not '{found}'")


D = TypeVar("D", bound=Defense)
DEFENSES: dict[str, type[Defense]] = {}


def register(defense: type[D]) -> type[D]:
    """Register a defense by its name; a class decorator."""
    DEFENSES[defense.name] = defense
    return defense


def parse_defense(text: str) -> Defense:
    """Parse a defense written as `NAME:VALUE`, or `NAME` alone if it takes no value."""
    name, _, numbers = (part.strip() for part in text.partition(":"))
    if name not in DEFENSES:
        raise unknown_name("defense", name, DEFENSES)
    return DEFENSES[name].read(numbers)


def _written(number: float) -> str:
    """Return the shortest text that reads back as the number."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
