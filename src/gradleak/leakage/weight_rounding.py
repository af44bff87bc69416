"""The rounding of float32 weights, as it shows in the difference of two of them.

A small step of SGD changes a float32 weight by about as much as float32 resolves there: a weight of 0.05 in steps of
4e-9, one of 0.005 ten times as finely. The attacker has the weights, and so knows how well each entry of the difference
is known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.exchange import FedAvg


def spacing(sizes: Tensor) -> Tensor:
    """Return the distance of neighbouring float32 numbers of given sizes."""
    return torch.finfo(torch.float32).eps * torch.exp2(sizes.clamp(min=1e-30).log2().floor())


def sgd_deviation(weight: Tensor, training: FedAvg, texts: int | None = None) -> Tensor:
    """Return the standard deviation that rounding gives each entry of a gradient, read from steps of SGD.

    Args:
        weight: the weights before training.
        training: the protocol. Every step rounds, those on the same texts alike.
        texts: the number of the client's texts; None if it is not known.
    """
    return spacing(weight.double().abs()) / (12 * training.distinct_steps(texts)) ** 0.5 / training.lr
