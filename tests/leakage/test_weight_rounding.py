from __future__ import annotations

import torch

from gradleak.exchange import FedAvg
from gradleak.leakage.weight_rounding import sgd_deviation, spacing


def test_spacing_is_the_distance_to_the_next_float32_number() -> None:
    sizes = torch.tensor([0.05, 1.0, 3e-4, 7.0])
    following = torch.nextafter(sizes, torch.tensor(torch.inf))
    torch.testing.assert_close(spacing(sizes.double()).float(), following - sizes)


def test_the_deviation_is_that_of_steps_which_float32_weights_round() -> None:
    stream = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(20_000, generator=stream)
    gradients = 1e-3 * torch.randn(3, 20_000, generator=stream)
    training = FedAvg(steps=3, lr=1e-5)
    trained = weight.clone()
    for gradient in gradients:
        trained -= training.lr * gradient
    seen = (weight - trained).double() / (3 * training.lr)
    pull = (seen - gradients.double().mean(dim=0)) / sgd_deviation(weight, training)
    assert 0.8 < float(pull.square().mean().sqrt()) < 1.2
