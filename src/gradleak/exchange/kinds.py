"""Gradient, difference of weights, or whole weights: which of them a file holds that does not say so itself.

A difference of weights shows in its last bits. Weights after and before training are both rounded to float32, so that
their difference is a whole multiple of the rounding unit of the weights. A gradient is rounded to its own, much finer
unit, and is such a multiple only by chance. On `tiny` all entries of FedAvg's and AdamW's differences are multiples,
and 1 % of a gradient's, 8 % under noise of 0.01. What was scaled or averaged on its way shows nothing, and passes for a
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange.update import Kind, Update
from gradleak.targets import Target

BITS = 24  # of a float32's significand
# An entry counts if its own unit is at most 1/8 of half the weight's: chance makes one in eight of these a multiple.
FINER = 4
MULTIPLES = 0.95  # the share of multiples among the entries that count, from which on it is a difference
LEAST = 50  # entries that must count before anything is said
ALIKE = 0.9  # cosine of the whole update and the weights, from which on it is weights itself
SMALLEST = 1e-30  # a weight, below which float32 cannot scale by its unit
SAMPLE = 2**16  # entries of each tensor that are looked at


@dataclass(frozen=True)
class Appearance:
    """What an update's numbers look like, and why; None if they do not tell."""

    kind: Literal["gradient", "difference", "weights"] | None
    why: str


def stated_kind(path: str | Path) -> Kind | None:
    """Return the kind that an update's file states in its metadata; None for a file of other software."""
    with safe_open(str(path), framework="pt") as file:
        kind = (file.metadata() or {}).get("kind")
    return kind if kind in ("gradient", "difference") else None


def appearance(update: Update, target: Target) -> Appearance:
    """Tell from an update's numbers, and the weights that it belongs to, what it is."""
    counted, multiples = 0, 0
    product, size, weights_size = 0.0, 0.0, 0.0
    for entries, weights in _pairs(update, target):
        product += float(entries.double() @ weights.double())
        size += float(entries.double().square().sum())
        weights_size += float(weights.double().square().sum())
        here, whole = _multiples(entries, weights)
        counted, multiples = counted + here, multiples + whole
    if product > ALIKE * (size * weights_size) ** 0.5:
        return Appearance("weights", f"its tensors are much like the weights of {target.name} themselves")
    if counted < LEAST:
        return Appearance(None, "its numbers do not tell")
    share = f"{100 * multiples / counted:.0f} % of its entries are multiples of the weights' rounding unit"
    return Appearance("difference" if multiples >= MULTIPLES * counted else "gradient", share)


def settle_kind(
    update: Update,
    target: Target,
    path: str | Path,
    *,
    kind: Kind | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> tuple[Update, str]:
    """Return an update from a file as what it is: gradient or difference; and why it is taken for that.

    What the file states counts, then what the caller says, then what the numbers look like.

    Args:
        update: as `Update.load` read it.
        target: the model that it belongs to.
        path: its file.
        kind: what the caller says it is.
        steps: local steps of FedAvg, which make it a difference.
        learning_rate: their learning rate; given if `steps` is.

    Raises:
        GradleakError: if file and caller contradict each other, or a difference lacks steps and learning rate.
    """
    if kind == "gradient" and steps is not None:
        raise GradleakError("--kind gradient and --fedavg exclude each other: FedAvg sends a difference of weights")
    stated = stated_kind(path)
    if stated is not None:
        _refuse_contradiction(update, path, kind, steps, learning_rate)
        return update, "the file says so"
    looks = Appearance(None, "") if kind is not None else appearance(update, target)
    if looks.kind == "weights":
        raise GradleakError(
            f"{path} holds weights, not an update ({looks.why}): save the weights after training minus those before, "
            "and give --fedavg steps=…,lr=… with it"
        )
    if steps is not None:
        difference = replace(update, kind="difference", steps=steps, learning_rate=learning_rate)
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


def _refuse_contradiction(
    update: Update, path: str | Path, kind: Kind | None, steps: int | None, learning_rate: float | None
) -> None:
    if kind is not None and kind != update.kind:
        raise GradleakError(f"{path} says of itself that it is a {update.kind}; leave out --kind {kind}")
    if steps is None:
        return
    if update.kind == "gradient":
        raise GradleakError(f"{path} says of itself that it is a gradient; leave out --fedavg")
    if (steps, learning_rate) != (update.steps, update.learning_rate):
        own = f"steps={update.steps},lr={update.learning_rate:g}"
        raise GradleakError(f"{path} says of itself that it was made with {own}; leave out --fedavg")


def _pairs(update: Update, target: Target) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield entries of the update's tensors and the weights that they belong to, as float32 on the CPU."""
    for name, tensor in update.tensors.items():
        parameter = target.parameters.get(name)
        if parameter is None or parameter.shape != tensor.shape or not tensor.is_floating_point():
            continue
        stride = max(1, tensor.numel() // SAMPLE)
        entries, weights = (part.detach().flatten()[::stride].cpu().float() for part in (tensor, parameter))
        if bool(torch.isfinite(entries).all()):
            yield entries, weights


def _multiples(entries: Tensor, weights: Tensor) -> tuple[int, int]:
    """Return how many entries can tell a difference from a gradient, and how many of them are multiples.

    Half the weight's rounding unit is asked for: that is the unit of a weight that fell below a power of two.
    """
    used = (entries != 0) & (weights.abs() > SMALLEST)
    entries, weights = entries[used], weights[used]
    half_unit = torch.frexp(weights).exponent - BITS - 1
    bits, least = _precision(entries)
    own_unit = (torch.frexp(entries).exponent - bits).clamp_min(least)
    telling = own_unit <= half_unit - FINER + 1
    scaled = torch.ldexp(entries[telling].double(), -half_unit[telling])
    return int(telling.sum()), int((scaled == scaled.round()).sum())


def _precision(entries: Tensor) -> tuple[int, int]:
    """Return the bits of the significand that entries use, and the exponent of their smallest unit.

    A cast to bfloat16 leaves 8 bits; one to float16 leaves 11, and no unit below 2⁻²⁴.
    """
    mantissas, steps = entries.view(torch.int32), entries.double() * 2.0**24
    bits = 8 if not bool((mantissas & 0xFFFF).any()) else 11 if not bool((mantissas & 0x1FFF).any()) else BITS
    return bits, -24 if bool((steps == steps.round()).all()) else -149
