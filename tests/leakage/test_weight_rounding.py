from __future__ import annotations

import pytest
import torch

from gradleak.exchange import FedAvg
from gradleak.leakage.weight_rounding import UNSEEN, rest_of_gradient, sgd_deviation, spacing


def test_spacing_is_the_distance_to_the_next_float32_number() -> None:
    sizes = torch.tensor([0.05, 1.0, 3e-4, 7.0])
    following = torch.nextafter(sizes, torch.tensor(torch.inf))
    torch.testing.assert_close(spacing(sizes.double()).float(), following - sizes)


def test_the_deviation_is_that_of_steps_which_float32_weights_round() -> None:
    stream = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(20_000, generator=stream)
    gradients = 1e-3 * torch.randn(3, 20_000, generator=stream)
    training = FedAvg(steps=3, lr=1e-5, batch=1)
    trained = weight.clone()
    for gradient in gradients:
        trained -= training.lr * gradient
    seen = (weight - trained).double() / (3 * training.lr)
    pull = (seen - gradients.double().mean(dim=0)) / sgd_deviation(weight, training)
    assert 0.8 < float(pull.square().mean().sqrt()) < 1.2


@pytest.mark.parametrize("settings", [{"epochs": 5, "batch": 1}, {"steps": 10, "batch": 1}])
def test_steps_on_the_same_texts_are_rounded_alike(settings: dict[str, int]) -> None:
    stream = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(20_000, generator=stream)
    gradients = 1e-3 * torch.randn(2, 20_000, generator=stream)
    training = FedAvg(lr=1e-5, **settings)  # type: ignore[arg-type]
    trained = weight.clone()
    for gradient in gradients.repeat(5, 1):
        trained -= training.lr * gradient
    seen = (weight - trained).double() / (10 * training.lr)
    pull = (seen - gradients.double().mean(dim=0)) / sgd_deviation(weight, training, 2)
    assert 0.8 < float(pull.square().mean().sqrt()) < 1.2


def test_the_rest_beside_a_known_part_is_seen_as_well_as_is_said() -> None:
    """Eight texts in four steps, of which six are known; most steps are smaller than the spacing."""
    stream = torch.Generator().manual_seed(0)
    weight = 0.1 * torch.randn(200, 100, generator=stream)
    size = torch.logspace(-5, -3, 200)[:, None]
    texts = size * torch.randn(8, 200, 100, generator=stream)
    training = FedAvg(steps=4, lr=1e-5, batch=2)
    trained = weight.clone()
    for step in texts.view(4, 2, 200, 100):
        trained -= training.lr * step.mean(dim=0)
    seen = (weight - trained).double() / (4 * training.lr)
    parts = texts.double() / 8
    known, truth = parts[:6].sum(dim=0), parts[6:].sum(dim=0)
    found, deviation = rest_of_gradient(
        seen - known, (known, parts[:6].square().sum(dim=0)), weight, training, len(texts)
    )
    shown = deviation < deviation.max()
    assert 0.2 < float(shown.double().mean()) < 0.8
    assert float(deviation.max()) == pytest.approx(UNSEEN * float(found.square().mean().sqrt()))
    pull = (found - truth)[shown] / deviation[shown]
    assert 0.8 < float(pull.square().mean().sqrt()) < 1.2
