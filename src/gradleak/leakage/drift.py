"""Local steps move the weights while the client trains, and with them what enters each layer.

An update of several steps is a sum over gradients at weights from those before training to those after it. Their mean,
about half of the way, is nearer to all of them than its beginning: what enters a layer is computed by a target moved so
far.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from gradleak.exchange import FedAvg, Protocol
from gradleak.targets import Target


def takes_steps(training: FedAvg | None) -> bool:
    """Return whether the weights moved between the gradients of which an update is the sum."""
    return training is not None and training.steps != 1


@contextmanager
def halfway(target: Target, gradient: Mapping[str, Tensor], protocol: Protocol) -> Iterator[None]:
    """Move a target to the mean of its weights before each step of SGD for the length of the context."""
    training = protocol.training
    if training is None or not _moves_steadily(training):
        yield
        return
    way = 0.5 if training.steps is None else 0.5 * (training.steps - 1) / training.steps  # epochs have many steps
    rate = training.lr * (training.steps or training.epochs or 1)
    with moved_by(target, {name: -way * rate * own for name, own in gradient.items()}):
        yield


def copy_at_mean_weights(target: Target, gradient: Mapping[str, Tensor], protocol: Protocol) -> Target:
    """Return a copy of a target moved to the mean of its weights before each step of SGD; itself if there is one step.

    A text's mean gradient over all steps is nearly that at the mean of the weights.
    """
    if protocol.training is None or not _moves_steadily(protocol.training):
        return target
    with halfway(target, gradient, protocol):
        return target.with_model(copy.deepcopy(target.model), target.adapter)


def _moves_steadily(training: FedAvg) -> bool:
    return training.optimizer == "sgd" and takes_steps(training)


@contextmanager
def moved_by(target: Target, change: Mapping[str, Tensor]) -> Iterator[None]:
    """Add a change to a target's parameters for the length of the context."""
    own = {name: target.parameters[name].data for name in change}
    try:
        for name, before in own.items():
            target.parameters[name].data = before + change[name].to(before)
        yield
    finally:
        for name, before in own.items():
            target.parameters[name].data = before
