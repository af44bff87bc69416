"""Kinds of updates: tell a gradient, a difference of weights and whole weights apart in a file that does not say.

Used where captured updates are loaded. A difference of weights shows in its last bits: the weights after and before
training are both rounded to float32, so their difference is a whole multiple of the weights' rounding unit. A gradient
is rounded to its own, much finer unit, and is such a multiple only by chance. On `tiny`, all entries of FedAvg's and
AdamW's differences are multiples, but 1 % of a gradient's, and 8 % under noise of 0.01. An update that was scaled or
averaged in transit shows nothing, and passes for a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange.protocol import FedAvg
from gradleak.exchange.update import Kind, Update
from gradleak.files import refused_as
from gradleak.targets import Target

SIGNIFICAND_BITS = 24  # of a float32
# An entry is informative if its own unit is at most 1/8 of half the weight's: then 1 in 8 is a multiple by chance.
INFORMATIVE_BITS = 4
DIFFERENCE_SHARE = 0.95  # an update with at least this share of multiples among informative entries is a difference
MIN_INFORMATIVE = 50  # informative entries below which nothing is concluded
WEIGHTS_COSINE = 0.9  # an update whose cosine with the weights is larger is weights itself
MIN_WEIGHT = 1e-30  # smaller weights cannot be scaled by their unit in float32
SAMPLE_SIZE = 2**16  # entries of each tensor that are examined


@dataclass(frozen=True)
class Appearance:
    """The kind that an update's numbers suggest (None if they suggest none), and the reason in words."""

    kind: Literal["gradient", "difference", "weights"] | None
    why: str


def stated_kind(path: str | Path) -> Kind | None:
    """Return the kind in the metadata of an update's file; None for a file of other software."""
    with refused_as(f"{path} is corrupt or truncated", SafetensorError), safe_open(str(path), framework="pt") as file:
        kind = (file.metadata() or {}).get("kind")
    return kind if kind in ("gradient", "difference") else None


def appearance(update: Update, target: Target) -> Appearance:
    """Infer the kind of an update from its numbers and the target's weights."""
    counted, multiples = 0, 0
    product, size, weights_size = 0.0, 0.0, 0.0
    for entries, weights in _pairs(update, target):
        product += float(entries.double() @ weights.double())
        size += float(entries.double().square().sum())
        weights_size += float(weights.double().square().sum())
        here, whole = _multiples(entries, weights)
        counted, multiples = counted + here, multiples + whole
    if product > WEIGHTS_COSINE * (size * weights_size) ** 0.5:
        return Appearance("weights", f"its tensors are much like the weights of {target.name} themselves")
    if counted < MIN_INFORMATIVE:
        return Appearance(None, "its numbers do not tell")
    share = f"{100 * multiples / counted:.0f} % of its entries are multiples of the weights' rounding unit"
    return Appearance("difference" if multiples >= DIFFERENCE_SHARE * counted else "gradient", share)


def settle_kind(
    update: Update,
    target: Target,
    path: str | Path,
    *,
    kind: Kind | None = None,
    training: FedAvg | None = None,
) -> tuple[Update, str]:
    """Return an update from a file with its kind settled, gradient or difference, and the reason in words.

    The file's own statement takes precedence, then the caller's, then the appearance of the numbers.

    Args:
        update: as `Update.load` read it.
        target: the model it was computed on.
        path: its file.
        kind: the caller's statement.
        training: the protocol of local training; it makes it a difference.

    Raises:
        GradleakError: if file and caller contradict each other, or a difference lacks steps and learning rate.
    """
    if kind == "gradient" and training is not None:
        raise GradleakError("--kind gradient and --fedavg exclude each other: FedAvg sends a difference of weights")
    stated = stated_kind(path)
    if stated is not None:
        _refuse_contradiction(update, path, kind, training)
        return update, "the file says so"
    looks = Appearance(None, "") if kind is not None else appearance(update, target)
    if looks.kind == "weights":
        raise GradleakError(
            f"{path} holds weights, not an update ({looks.why}): save the weights after training minus those before, "
            "and give --fedavg steps=…,lr=… with it"
        )
    if training is not None:
        difference = replace(update, kind="difference", training=training)
        doubt = "; by its numbers it may be a gradient, or was scaled" if looks.kind == "gradient" else ""
        return difference, f"--fedavg says so{doubt}"
    if kind == "difference":
        raise GradleakError("--kind difference needs --fedavg steps=…,lr=…: how the weights came to differ")
    if looks.kind == "difference":
        raise GradleakError(
            f"{path} looks like a difference of weights ({looks.why}): give --fedavg steps=…,lr=…, "
            "or --kind gradient if it is none"
        )
    if kind == "gradient":
        return update, "--kind says so"
    return update, f"as its numbers look: {looks.why}" if looks.kind == "gradient" else f"assumed: {looks.why}"


def _refuse_contradiction(update: Update, path: str | Path, kind: Kind | None, training: FedAvg | None) -> None:
    if kind is not None and kind != update.kind:
        raise GradleakError(f"{path} says of itself that it is a {update.kind}; leave out --kind {kind}")
    if training is None:
        return
    if update.kind == "gradient":
        raise GradleakError(f"{path} says of itself that it is a gradient; leave out --fedavg")
    if training != update.training:
        raise GradleakError(f"{path} says of itself that it was made with {update.training}; leave out --fedavg")


def _pairs(update: Update, target: Target) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a sample of each tensor's entries and the weights at the same places, as float32 on the CPU."""
    for name, tensor in update.tensors.items():
        parameter = target.parameters.get(name)
        if parameter is None or parameter.shape != tensor.shape or not tensor.is_floating_point():
            continue
        stride = max(1, tensor.numel() // SAMPLE_SIZE)
        entries, weights = (part.detach().flatten()[::stride].cpu().float() for part in (tensor, parameter))
        if bool(torch.isfinite(entries).all()):
            yield entries, weights


def _multiples(entries: Tensor, weights: Tensor) -> tuple[int, int]:
    """Return the number of informative entries, and how many of them are multiples of half the weight's rounding unit.

    Half, because that is the unit of a weight that fell below a power of two during training.
    """
    used = (entries != 0) & (weights.abs() > MIN_WEIGHT)
    entries, weights = entries[used], weights[used]
    half_unit = torch.frexp(weights).exponent - SIGNIFICAND_BITS - 1
    bits, least = _precision(entries)
    own_unit = (torch.frexp(entries).exponent - bits).clamp_min(least)
    informative = own_unit <= half_unit - INFORMATIVE_BITS + 1
    scaled = torch.ldexp(entries[informative].double(), -half_unit[informative])
    return int(informative.sum()), int((scaled == scaled.round()).sum())


def _precision(entries: Tensor) -> tuple[int, int]:
    """Return the significand bits that entries use, and the exponent of their smallest unit.

    A cast to bfloat16 leaves 8 bits; one to float16 leaves 11, and no unit below 2⁻²⁴.
    """
    mantissas, steps = entries.view(torch.int32), entries.double() * 2.0**24
    bits = SIGNIFICAND_BITS
    if not bool((mantissas & 0xFFFF).any()):
        bits = 8
    elif not bool((mantissas & 0x1FFF).any()):
        bits = 11
    return bits, -24 if bool((steps == steps.round()).all()) else -149
