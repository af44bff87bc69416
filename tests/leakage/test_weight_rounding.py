from __future__ import annotations

import torch

from gradleak.exchange import Protocol
from gradleak.federation import Client, FedAvg
from gradleak.leakage.weight_rounding import restored, spacing
from wide_targets import LABELS, TEXTS, sent, wider_target


def test_spacing_is_the_distance_to_the_next_float32_number() -> None:
    sizes = torch.tensor([0.05, 1.0, 3e-4, 7.0])
    following = torch.nextafter(sizes, torch.tensor(torch.inf))
    torch.testing.assert_close(spacing(sizes.double()).float(), following - sizes)


RATE = 1e-6
"""So small that float32 weights resolve a step only roughly."""


def test_a_difference_of_weights_comes_closer_to_the_gradient() -> None:
    target = wider_target()
    maps = [(target.layers[0].query, target.layers[0].key, target.layers[0].value)]
    update = Client(target, fedavg=FedAvg(steps=1, lr=RATE)).update(TEXTS, LABELS)
    gradient, truth = update.gradient(), sent(target).tensors
    better = restored(target, gradient, update.protocol, maps)

    def error(found: dict[str, torch.Tensor]) -> float:
        return sum(float((found[part.weight] - truth[part.weight]).norm()) for part in maps[0])

    assert error(better) < 0.9 * error(gradient)
    untouched = [name for name in gradient if name not in {part.weight for part in maps[0]}]
    assert all(torch.equal(better[name], gradient[name]) for name in untouched)


def test_gradients_and_coarse_steps_stay_as_they_are() -> None:
    target = wider_target()
    maps = [(target.layers[0].query,)]
    gradient = dict(sent(target).tensors)
    for protocol in (Protocol(), Protocol(FedAvg(steps=1, lr=1.0))):
        same = restored(target, gradient, protocol, maps)
        assert all(torch.equal(same[name], gradient[name]) for name in gradient)
