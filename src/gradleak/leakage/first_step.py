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
        resolution = spacing(torch.maximum(weight.abs(), (weight + moved).abs())) / training.lr
        wire = _half_step(moved) / training.lr if send == "fp16" else WIRE_STEP[send] * size.clamp(max=1.0)
        unsure = resolution + wire + ARITHMETIC
        gap = 1.0 - size
        if tensor.ndim > 1:
            resolved.append(float((gap / unsure).median()))
        slope = training.eps * step.sign() * size.clamp(max=1.0) / torch.maximum(gap, unsure)
        found[name] = (slope - (decay if training.optimizer == "adam" else 0.0)).to(tensor.dtype)
    return found if resolved and sorted(resolved)[len(resolved) // 2] > RESOLVED else None


def _half_step(sizes: Tensor) -> Tensor:
    """Return the distance of neighbouring float16 numbers of given sizes; those below 6e-5 are all as far apart."""
    return torch.exp2(sizes.abs().clamp(min=2.0**-14).log2().floor() - 10)
