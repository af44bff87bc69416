"""A text's mean gradient over local steps is nearly that at the mean of the weights."""

from __future__ import annotations

import torch

from gradleak.federation import FedAvg
from gradleak.leakage.drift import copy_at_mean_weights
from gradleak.leakage.recompute import batch_gradient
from gradleak.targets import Target
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target


def test_gradients_at_the_mean_of_the_weights_are_nearer_to_those_of_all_steps() -> None:
    target = wider_target()
    update = sent(target, fedavg=FedAvg(steps=6, lr=1e-3))
    seen, before = update.gradient(), {name: own.detach().clone() for name, own in target.parameters.items()}
    moved = copy_at_mean_weights(target, seen, update.protocol)
    assert all(torch.equal(target.parameters[name], own) for name, own in before.items())

    def error(model: Target) -> float:
        own = batch_gradient(model, ids_of(target), LABELS, list(seen))
        return float(torch.stack([(own[name] - seen[name]).norm() for name in seen]).norm())

    assert error(moved) < 0.2 * error(target)


def test_one_step_is_taken_at_the_weights_before_it() -> None:
    target = wider_target()
    for fedavg in (None, FedAvg(steps=1, lr=1e-2), FedAvg(steps=3, lr=1e-4, optimizer="adamw")):
        update = sent(target, TEXTS, LABELS, fedavg=fedavg)
        assert copy_at_mean_weights(target, update.gradient(), update.protocol) is target
