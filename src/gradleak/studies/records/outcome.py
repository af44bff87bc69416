"""What comes out of a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One private sentence, what was read back of it, and the scores from 0 to 100.

    Attributes:
        batch: number of its batch in the cell, from 0.
        position: its place in the batch.
        reference: the private sentence.
        reconstruction: what is held against it; None if the attack found fewer sentences.
        label: the class that the attack worked with or found.
        loss: of the batch; None if it is not finite.
    """

    batch: int
    position: int
    reference: str
    reconstruction: str | None
    label: int | None
    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 (the field's own spelling)
    exact: float
    token_accuracy: float
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class BatchRecord:
    """What holds for a batch as a whole.

    Attributes:
        batch: its number in the cell, from 0.
        returned: how many distinct texts the attack returned.
        exact: how many of them are exactly a private text of the batch.
        surplus: how many of them were returned beyond what the batch has sentences for.
        unrepresentable: how many private sentences the tokenizer cannot write in full.
    """

    batch: int
    returned: int
    exact: int
    surplus: int
    unrepresentable: int


@dataclass(frozen=True, kw_only=True)
class UtilityRecord:
    """How useful a model is after fine-tuning under defenses (see `utility`); what is not finite is None."""

    mcc: float | None
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    steps: int
    examples: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The records of a finished cell.

    Attributes:
        sentences: of an attack cell, one per private sentence.
        batches: of an attack cell, one per batch.
        utility: of a utility cell.
        seconds: how long it took, without loading the model.
        version: of gradleak.
        model_hash: fingerprint of the model's weights.
        machine: where it ran.
    """

    sentences: tuple[Sentence, ...] = ()
    batches: tuple[BatchRecord, ...] = ()
    utility: UtilityRecord | None = None
    seconds: float
    version: str
    model_hash: str
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """Why a cell did not finish.

    Attributes:
        error: one line.
        hopeless: nothing would be different the next time.
    """

    error: str
    hopeless: bool = False
