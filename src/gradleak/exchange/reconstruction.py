"""Reconstruction: what an attack found, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """What an attack had at one moment of its run."""

    step: int
    loss: float
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """The recovered batch.

    Attributes:
        token_ids: token ids of each sequence, special tokens included, no padding.
        texts: the same as text, special tokens left out.
        labels: the classes that the attack worked with or found; None for a language model.
        loss: the attack's distance between the gradient of `token_ids` and the observed one.
        seconds: how long it took; of several updates attacked together, this one's share.
        attack: the attack's name.
        settings: its hyperparameters.
        seed: its seed.
        version: gradleak's version.
        model_hash: fingerprint of the target's weights.
        history: how it got there.
        notes: what the attack inferred or assumed, in words.
        verified: whether the update proves that every text returned was trained on (docs/verified.md).
        complete: whether it proves, too, that nothing else was: these texts explain the whole update.
        labels_verified: whether it proves the labels.
        copies: how often each text was found, at least; a text that occurs several times is returned once.
        verdict: one sentence on what the result means.
        not_tested: what neither this result nor `verified` says anything about.
        next_steps: what to do next.
        tokenizer: the target's, for scoring.
    """

    token_ids: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    labels: tuple[int, ...] | None
    loss: float
    seconds: float
    attack: str
    settings: Mapping[str, Any]
    seed: int
    version: str
    model_hash: str
    history: tuple[Snapshot, ...] = ()
    notes: tuple[str, ...] = ()
    verified: bool = False
    complete: bool = False
    labels_verified: bool = False
    copies: tuple[int, ...] = ()
    verdict: str = ""
    not_tested: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    tokenizer: Any = field(default=None, repr=False, compare=False)
