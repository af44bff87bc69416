"""The gradient behind one step of Adam or AdamW.

The first step changes a weight by −lr · g / (|g| + ε): nearly −lr · sign(g), and therefore taken for a form of sign
compression. But ε keeps the size. With u = |change| / lr, |g| = ε · u / (1 − u): where float32 weights of 0.05 resolve
u to 4e-5 (lr 5e-5), a gradient of 1e-5 has u = 0.999 and is known to 4 %. Smaller ones are known better, larger ones
less well; weights near zero resolve more. Rounding u to half precision hides it: then the signs are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.exchange import FedAvg, Update
from gradleak.leakage.weight_rounding import spacing
from gradleak.targets import Target

ARITHMETIC = 5e-7
"""Relative precision of a step that torch's optimisers compute in float32."""

SATURATED, BOUND = 1.5, 3.0
"""Of a gradient with 1 − u below so many times its resolution only a lower bound is known; the gradient itself is
taken to lie within this many times the bound."""

EVEN, FLAT = 0.1, 0.5
"""In steps of Adam the median is above the first fraction of the largest entry; gradients have longer tails, but those
of small models may come near it. Above the second fraction entries are steps in any case."""

UNIT = 0.1
"""Steps reach a size of 1 in units of the learning rate, gradients behind a step of Adam 0.02: ε / `ARITHMETIC`."""

RESOLVED = 3.0
"""Sizes are read if 1 − u is at least this many times its resolution, in the median."""

WIRE_STEP = {"fp32": 0.0, "bf16": 2.0**-8, "int8": 2.0**-7, "int8-tensor": 2.0**-7}
"""Resolution of a number of size 1 in the format in which an update is sent."""


def as_gradient(target: Target, update: Update) -> dict[str, Tensor]:
    """Return the gradient of an update: of one step of Adam or AdamW the one behind it, else `update.gradient()`."""
    training = update.training
    once = training is not None and training.steps == 1 and update.clients == 1
    if training is None or not once or training.optimizer == "sgd":
        return update.gradient()
    return gradient_of_first_step(target, update.tensors, training, update.send) or update.gradient()


def gradient_of_first_step(
    target: Target, change: Mapping[str, Tensor], training: FedAvg, send: str = "fp32"
) -> dict[str, Tensor] | None:
    """Return the gradient behind the first step of Adam or AdamW; None if only its signs can be told.

    Args:
        target: the model before the step.
        change: the weights after minus those before, by name.
        training: the protocol, of one step.
        send: the number format in which the change was sent.
    """
    found, resolved = {}, []
    for name, tensor in change.items():
        weight = target.parameters[name].detach().to(tensor).double()
        moved = tensor.double()
        decay = training.weight_decay * weight
        step = -moved / training.lr - (decay if training.optimizer == "adamw" else 0.0)
        size = step.abs()
        unsure = _resolution(weight, moved, training, send)
        gap = 1.0 - size
        if tensor.ndim > 1:
            resolved.append(float((gap / unsure).median()))
        slope = training.eps * step.sign() * size.clamp(max=1.0) / torch.maximum(gap, unsure)
        found[name] = (slope - (decay if training.optimizer == "adam" else 0.0)).to(tensor.dtype)
    return found if resolved and sorted(resolved)[len(resolved) // 2] > RESOLVED else None


def are_steps(gradient: Mapping[str, Tensor]) -> bool:
    """Return whether entries are steps of Adam, and no gradients: all of about the same size."""
    sizes = [tensor.abs() for tensor in gradient.values() if tensor.ndim > 1]
    if not sizes:
        return False
    even = sorted(float(size.median() / size.max().clamp(min=1e-30)) for size in sizes)[len(sizes) // 2]
    largest = sorted(float(size.max()) for size in sizes)[len(sizes) // 2]
    return even > FLAT or (even > EVEN and largest > UNIT)


def as_first_step(gradient: Mapping[str, Tensor], training: FedAvg | None) -> dict[str, Tensor]:
    """Return the step that Adam takes on a gradient that `gradient_of_first_step` found, in units of the learning rate.

    Two gradients of one batch may differ where the step hardly shows their size; the steps do not. Others are returned
    as they are.
    """
    if training is None or training.optimizer == "sgd" or training.steps != 1 or are_steps(gradient):
        return dict(gradient)
    return {name: tensor / (tensor.abs() + training.eps) for name, tensor in gradient.items()}


def first_step_deviation(weight: Tensor, gradient: Tensor, training: FedAvg, send: str = "fp32") -> Tensor:
    """Return the standard deviation of each entry of a gradient that `gradient_of_first_step` found.

    Args:
        weight: the weights before the step.
        gradient: what was found.
        training: the protocol, of one step.
        send: the number format in which the change was sent.
    """
    weight, gradient = weight.double(), gradient.double()
    gap = training.eps / (gradient.abs() + training.eps)
    moved = -training.lr * gradient.sign() * (1.0 - gap)
    unsure = _resolution(weight, moved, training, send)
    deviation = unsure * training.eps / gap.square() / 12**0.5
    return torch.where(gap < SATURATED * unsure, BOUND * gradient.abs(), deviation)


def _resolution(weight: Tensor, moved: Tensor, training: FedAvg, send: str) -> Tensor:
    """Return how well u = |change| / lr is known, for each entry."""
    weights = spacing(torch.maximum(weight.abs(), (weight + moved).abs())) / training.lr
    size = (moved / training.lr).abs().clamp(max=1.0)
    return weights + (_half_step(moved) / training.lr if send == "fp16" else WIRE_STEP[send] * size) + ARITHMETIC


def _half_step(sizes: Tensor) -> Tensor:
    """Return the distance of neighbouring float16 numbers of given sizes; those below 6e-5 are all as far apart."""
    return torch.exp2(sizes.abs().clamp(min=2.0**-14).log2().floor() - 10)
