"""What every defense shares, and how the command line names one."""

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
"""What a client keeps from one round to the next on behalf of its defenses."""


@dataclass(frozen=True)
class Defense(ABC):
    """Base of all defenses.

    A subclass is a frozen dataclass whose fields are its numbers, in the order in which they are written after the
    name. It gives its name, one line of summary and what its numbers are in words (empty for a defense without any),
    tells in `is_sensible` which numbers make sense, and writes `apply`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    takes: ClassVar[str]
    per_example: ClassVar[bool] = False
    by_tensor: ClassVar[bool] = False  # each tensor is changed without a look at the others

    def __post_init__(self) -> None:
        if not self.is_sensible():
            raise self._refused(",".join(f"{number:g}" for number in astuple(self)))

    def __str__(self) -> str:
        numbers = ",".join(map(_written, astuple(self)))
        return f"{self.name}:{numbers}" if numbers else self.name

    @abstractmethod
    def is_sensible(self) -> bool:
        """Tell whether the numbers make sense; NaN must not."""

    @abstractmethod
    def apply(self, update: Update, generator: torch.Generator, memory: Memory | None = None) -> Update:
        """Return the update as it is sent under this defense; the original stays as it is.

        Args:
            update: what the client would send.
            generator: a generator on the CPU, so that every device gets the same random numbers.
            memory: what this defense remembers of earlier rounds, changed in place; None to remember nothing.
        """

    def apply_each(self, tensors: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """Return the updates of many clients as they are sent, each as if it were alone.

        Here they go through `apply` one by one; a defense that can change them all in one pass overrides this.

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
            updates: what the client would send for each example alone; gone through once, so that they need not be
                in memory together.
            generator: see `apply`, like `memory`.
            memory: see `apply`.
        """
        raise GradleakError(f"defense {self.name} changes the update of a batch, not those of its examples")

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the defense with the numbers written in `text`."""
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
    """Class decorator: make a defense known by its name."""
    DEFENSES[defense.name] = defense
    return defense


def parse_defense(text: str) -> Defense:
    """Return the defense that `NAME:VALUE` stands for (`NAME` alone if it takes no value)."""
    name, _, numbers = (part.strip() for part in text.partition(":"))
    if name not in DEFENSES:
        raise unknown_name("defense", name, DEFENSES)
    return DEFENSES[name].read(numbers)


def _written(number: float) -> str:
    """Return a number as short as it can be read back."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
