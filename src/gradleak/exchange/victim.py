"""`Victim` and `Finding`: input and output of `Attack.run`, one of each per update."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradleak.exchange.knowledge import Knowledge
from gradleak.exchange.protocol import Protocol
from gradleak.exchange.reconstruction import Snapshot


@dataclass(frozen=True)
class Victim:
    """One update under attack.

    Attributes:
        gradient: gradients by parameter name.
        knowledge: what the attacker is told.
        generator: the victim's own random stream.
        protocol: what is public of how the update was made.
        draft: token ids of texts that another attack read of this update; a descent starts from them if they come
            nearer to it than its own start.
        inferred: what an attack has inferred from the update already, by the rule that it used.
    """

    gradient: Mapping[str, Tensor]
    knowledge: Knowledge
    generator: torch.Generator
    protocol: Protocol = field(default_factory=Protocol)
    draft: Sequence[Sequence[int]] = ()
    inferred: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Finding:
    """The result of an attack's `run` on one victim; `Reconstruction` documents the fields it shares with this.

    Attributes:
        settled: whether the update was read to the end, so that no other attack is expected to find more.
    """

    token_ids: Sequence[Sequence[int]]
    labels: Sequence[int] | None
    loss: float
    history: tuple[Snapshot, ...] = ()
    notes: tuple[str, ...] = ()
    verified: bool = False
    complete: bool = False
    labels_verified: bool = False
    copies: tuple[int, ...] = ()
    settled: bool = False
