"""The outcome of a cell: what a worker returns and the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A private sentence, its reconstruction, and the scores from 0 to 100.

    Attributes:
        batch: number of its batch in the cell, from 0.
        position: its position in the batch.
        reference: the private sentence.
        reconstruction: the text aligned with it; None if the attack found fewer sentences.
        label: the class that the attack knew or found.
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
    """Counts over a batch.

    Attributes:
        batch: its number in the cell, from 0.
        returned: number of distinct texts that the attack returned.
        exact: number of returned texts that equal a private text of the batch.
        surplus: number of returned texts beyond the number of sentences of the batch.
        unrepresentable: number of private sentences that the tokenizer cannot represent in full.
    """

    batch: int
    returned: int
    exact: int
    surplus: int
    unrepresentable: int


@dataclass(frozen=True, kw_only=True)
class UtilityRecord:
    """Utility of a model that was fine-tuned under defenses (see `execution.utility`); None for values not finite."""

    mcc: float | None
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    steps: int
    examples: int


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """A private image and how well it was found.

    Attributes:
        batch: number of its client in the cell, from 0.
        position: its position in the client's batch.
        label: its class.
        read: the class that the attack knew or found.
        mse: mean squared error of pixels between 0 and 1.
        psnr: in dB.
        ssim: structural similarity; None for images smaller than its window.
        lpips: perceptual distance; None where its weights are not installed.
        loss: of the batch; None if it is not finite.
    """

    batch: int
    position: int
    label: int
    read: int
    mse: float
    psnr: float
    ssim: float | None
    lpips: float | None
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The records of a finished cell.

    Attributes:
        sentences: of an attack cell, one per private sentence.
        batches: of an attack cell, one per batch.
        utility: of a utility cell.
        images: of a cell of images, one per private image.
        seconds: duration without loading the model.
        version: of gradleak.
        model_hash: fingerprint of the model's weights.
        machine: description of the machine that ran it.
    """

    sentences: tuple[Sentence, ...] = ()
    batches: tuple[BatchRecord, ...] = ()
    utility: UtilityRecord | None = None
    images: tuple[ImageRecord, ...] = ()
    seconds: float
    version: str
    model_hash: str
    machine: Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    """Why a cell did not finish.

    Attributes:
        error: one line.
        hopeless: whether another attempt would fail the same way.
    """

    error: str
    hopeless: bool = False
