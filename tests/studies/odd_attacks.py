"""Attacks that misbehave on purpose; GRADLEAK_PLUGINS makes them known wherever a study runs."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import ClassVar

import torch

from gradleak.attacks import Attack, Finding, Victim, register
from gradleak.exchange import Reporter
from gradleak.targets import Target


@dataclass(frozen=True, kw_only=True)
class Odd(Attack):
    """Misbehaves the first times, as counted in a file, and then finds words drawn from its random stream."""

    paper: ClassVar[str] = "none"
    assumes: ClassVar[tuple[str, ...]] = ("labels", "lengths")

    times: int = 0
    marker: str = ""
    seconds: float = 0.0

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        if self.marker and count(self.marker) <= self.times:
            self.misbehave()
        sleep(self.seconds)
        return [self._finding(victim) for victim in victims]

    @abstractmethod
    def misbehave(self) -> None: ...

    def _finding(self, victim: Victim) -> Finding:
        lengths = victim.knowledge.lengths or (5,)
        ids = [torch.randint(5, 40, (length,), generator=victim.generator).tolist() for length in lengths]
        return Finding(ids, victim.knowledge.labels, float(torch.rand((), generator=victim.generator)))


@register
@dataclass(frozen=True, kw_only=True)
class Explode(Odd):
    name: ClassVar[str] = "explode"

    def misbehave(self) -> None:
        raise RuntimeError("boom")


@register
@dataclass(frozen=True, kw_only=True)
class Die(Odd):
    name: ClassVar[str] = "die"

    def misbehave(self) -> None:
        os._exit(3)


@register
@dataclass(frozen=True, kw_only=True)
class Interrupt(Odd):
    name: ClassVar[str] = "interrupt"

    def misbehave(self) -> None:
        raise KeyboardInterrupt


def count(marker: str) -> int:
    """Add one to a file's count, whoever else does, and return it."""
    with Path(marker).open("ab") as file:
        file.write(b".")
        file.flush()
        return file.tell()
