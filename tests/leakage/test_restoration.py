"""What small steps show of a gradient is made good by its low rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Protocol
from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import as_gradient
from gradleak.leakage.restoration import restore
from gradleak.targets import Projection, Target
from wide_targets import LABELS, TEXTS, sent, wider_target

ADAMW = FedAvg(steps=1, lr=5e-5, optimizer="adamw", eps=1e-6)
"""The ε of models with smaller gradients is smaller."""
RATE = 1e-6
"""So small that float32 weights resolve a step only roughly."""


def first_maps(target: Target) -> tuple[Projection, ...]:
    layer = target.layers[0]
    return (layer.query, layer.key, layer.value)


def error(found: Mapping[str, Tensor], truth: Mapping[str, Tensor], maps: tuple[Projection, ...]) -> float:
    return sum(float((found[part.weight] - truth[part.weight]).norm()) for part in maps)


def test_a_difference_of_weights_comes_closer_to_the_gradient() -> None:
    target = wider_target()
    maps = first_maps(target)
    update = Client(target, fedavg=FedAvg(steps=1, lr=RATE)).update(TEXTS, LABELS)
    gradient, truth = update.gradient(), sent(target).tensors
    better = restore(target, gradient, update.protocol, [maps])
    assert error(better.gradient, truth, maps) < 0.9 * error(gradient, truth, maps)
    untouched = [name for name in gradient if name not in {part.weight for part in maps}]
    assert all(torch.equal(better.gradient[name], gradient[name]) for name in untouched)
    assert list(better.floors) == [maps[0].module]


def test_one_step_of_adam_comes_closer_to_the_gradient() -> None:
    target = wider_target()
    maps = first_maps(target)
    update = Client(target, fedavg=ADAMW).update(TEXTS, LABELS)
    gradient, truth = as_gradient(target, update), sent(target).tensors
    better = restore(target, gradient, update.protocol, [maps]).gradient
    assert error(better, truth, maps) < 0.9 * error(gradient, truth, maps)


def test_steps_of_adam_get_columns_as_large_as_a_maps_inputs() -> None:
    target = wider_target()
    with torch.no_grad():
        target.model.bert.embeddings.LayerNorm.weight[:48] *= 4.0
    maps = first_maps(target)
    training = FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adamw")
    update = Client(target, fedavg=training).update(TEXTS, LABELS)
    found = restore(target, update.gradient(), update.protocol, [maps]).gradient[maps[0].weight]
    left, right = found[:, :48].norm(), found[:, 48:].norm()
    assert 2 < float(left / right) < 8
    steps = update.gradient()[maps[0].weight]
    assert 0.5 < float(steps[:, :48].norm() / steps[:, 48:].norm()) < 2


def test_gradients_and_coarse_steps_stay_as_they_are() -> None:
    target = wider_target()
    gradient = dict(sent(target).tensors)
    for protocol in (Protocol(), Protocol(FedAvg(steps=1, lr=1.0))):
        same = restore(target, gradient, protocol, [first_maps(target)])
        assert not same.floors
        assert all(torch.equal(same.gradient[name], gradient[name]) for name in gradient)


def test_nothing_is_restored_after_the_deadline() -> None:
    target = wider_target()
    update = Client(target, fedavg=FedAvg(steps=1, lr=RATE)).update(TEXTS, LABELS)
    assert not restore(target, update.gradient(), update.protocol, [first_maps(target)], Deadline(0.0)).floors
