"""`Reconstruction`: the result of an attack on one update, for users, scores and records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Snapshot:
    """State of an attack at one step of its run."""

    step: int
    loss: float
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """The recovered batch.

    Attributes:
        token_ids: token ids of each sequence, special tokens included, no padding.
        texts: the same decoded, special tokens left out.
        labels: the classes that the attack was given or found; None for a language model.
        loss: the attack's distance between the gradient of `token_ids` and the observed one.
        seconds: run time; for updates attacked together, this one's share of it.
        attack: the attack's name.
        settings: its hyperparameters.
        seed: its seed.
        version: gradleak's version.
        model_hash: fingerprint of the target's weights.
        history: snapshots of the run.
        notes: what the attack inferred or assumed, in words.
        verified: whether the update proves that every text returned was trained on (docs/verified.md).
        complete: whether it also proves that nothing else was: these texts explain the whole update.
        labels_verified: whether it proves the labels.
        copies: minimum number of occurrences of each text; a text that occurs several times is returned once.
        verdict: one sentence on what the result means.
        not_tested: claims that neither this result nor `verified` supports.
        next_steps: suggestions for the user.
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
