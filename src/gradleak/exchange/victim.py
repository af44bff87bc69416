"""`Victim` and `Finding`: input and output of `Attack.run`, one of each per update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange.knowledge import Knowledge
from gradleak.exchange.reconstruction import Snapshot


@dataclass(frozen=True)
class Victim:
    """One update under attack: its gradient, the attacker's knowledge, and its own random generator."""

    gradient: Mapping[str, Tensor]
    knowledge: Knowledge
    generator: torch.Generator


@dataclass(frozen=True)
class Finding:
    """The result of an attack's `run` on one victim; `Reconstruction` documents the fields."""

    token_ids: Sequence[Sequence[int]]
    labels: Sequence[int] | None
    loss: float
    history: tuple[Snapshot, ...] = ()
    notes: tuple[str, ...] = ()
    verified: bool = False
    complete: bool = False
    labels_verified: bool = False
    copies: tuple[int, ...] = ()
