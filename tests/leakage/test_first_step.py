"""One step of Adam keeps the size of a gradient in its epsilon, as far as the weights resolve it."""

from __future__ import annotations

import pytest
import torch

from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import are_steps, as_first_step, as_gradient, first_step_deviation
from wide_targets import LABELS, TEXTS, sent, wider_target

ADAMW = FedAvg(steps=1, lr=5e-5, optimizer="adamw", eps=1e-4)


def test_the_deviation_is_that_of_the_gradient_found() -> None:
    target = wider_target()
    name = target.layers[0].value.weight
    update = Client(target, fedavg=ADAMW).update(TEXTS, LABELS)
    found, truth = as_gradient(target, update)[name], sent(target).tensors[name]
    deviation = first_step_deviation(target.parameters[name].detach(), found, ADAMW)
    pull = ((found - truth) / deviation).abs()
    assert float((pull < 3).float().mean()) > 0.95
    assert float(pull.median()) > 0.05


def test_the_deviation_of_a_saturated_step_is_as_large_as_its_gradient() -> None:
    weight, gradient = torch.full((2,), 0.05), torch.tensor([1e-4, 1e2])
    small, large = (first_step_deviation(weight, gradient, ADAMW) / gradient).tolist()
    assert small < 1e-2
    assert large > 1


def test_steps_are_told_from_gradients() -> None:
    target = wider_target()
    training = FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adamw")
    assert are_steps(Client(target, fedavg=training).update(TEXTS, LABELS).gradient())
    assert not are_steps(sent(target).tensors)
    assert not are_steps({})


def test_an_even_gradient_behind_a_step_is_no_step() -> None:
    """Gradients of small models' adapters are nearly as even as steps; they are smaller."""
    even = torch.linspace(0.1, 1.0, 9)[None]
    behind = {"weight": 1e-2 * even.square()}
    assert not are_steps(behind)
    assert are_steps({"weight": even.square()})
    assert are_steps({"weight": 1e-2 * even})  # steps that were scaled after training
    one = FedAvg(steps=1, lr=1e-3, optimizer="adamw")
    torch.testing.assert_close(as_first_step(behind, one)["weight"], torch.ones_like(even), atol=1e-3, rtol=0)


@pytest.mark.parametrize("training", [None, FedAvg(steps=1, lr=0.1), FedAvg(steps=2, lr=5e-5, optimizer="adam")])
def test_only_one_step_of_adam_is_compared_as_a_step(training: FedAvg | None) -> None:
    gradient = {"weight": torch.tensor([[1e-4, -1e2, 1e-3, 2e-3, 1e-3]])}
    assert torch.equal(as_first_step(gradient, training)["weight"], gradient["weight"])
    step = as_first_step(gradient, ADAMW)["weight"]
    torch.testing.assert_close(step, torch.tensor([[0.5, -1.0, 0.909, 0.952, 0.909]]), atol=1e-3, rtol=0)
