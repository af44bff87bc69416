"""The gradient of one step of Adam follows from the update and the gradients of the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradleak.attacks.sieve.steps.moments import MomentModel, mean_decay, solutions, solve_step, unknown_part
from gradleak.exchange import Deadline, FedAvg

STEPS, RANK = 4, 3


def gradients() -> list[Tensor]:
    """Return a gradient of low rank for each step, of the sizes that gradients have."""
    stream = torch.Generator().manual_seed(1)
    return [
        1e-3 * torch.randn(48, RANK, generator=stream) @ torch.randn(RANK, 32, generator=stream) for _ in range(STEPS)
    ]


def trained(training: FedAvg, grads: list[Tensor]) -> Tensor:
    """Return the mean step that torch's own optimiser takes, in units of the learning rate."""
    weight = torch.nn.Parameter(torch.zeros(48, 32, dtype=torch.float64))
    options = {"betas": (training.beta1, training.beta2), "eps": training.eps, "weight_decay": 0.0}
    optimizer = torch.optim.AdamW([weight], lr=1.0, **options)
    for step, gradient in enumerate(grads):
        optimizer.param_groups[0]["lr"] = training.rate_factor(step, STEPS)
        weight.grad = gradient.double()
        optimizer.step()
    return -weight.detach() / STEPS


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("number", range(STEPS))
def test_the_model_takes_the_steps_that_torch_takes(schedule: str, number: int) -> None:
    training = FedAvg(steps=STEPS, lr=5e-5, optimizer="adamw", schedule=schedule)
    grads = gradients()
    model = MomentModel.of(training, [own.double() for own in grads], number)
    torch.testing.assert_close(model(grads[number].double()), trained(training, grads))
    part = model.rows(slice(3, 7))(grads[number][3:7].double())
    torch.testing.assert_close(part, trained(training, grads)[3:7])


@pytest.mark.parametrize("number", [0, 3])
def test_the_unknown_gradient_is_solved_for(number: int) -> None:
    training = FedAvg(steps=STEPS, lr=5e-5, optimizer="adamw")
    grads = gradients()
    seen = trained(training, grads).float()
    model = MomentModel.of(training, grads, number)
    size = torch.full_like(seen, 2e-3)
    fit = solve_step(model, seen, size, 1e-3, most_rank=8, deadline=Deadline())
    assert float((fit.matrix - grads[number]).norm() / grads[number].norm()) < 0.1
    rough, deviation = solutions(model, seen, size, 1e-3)
    assert float((rough - grads[number]).norm() / grads[number].norm()) > 0.2
    assert bool((deviation > 0).all())


def test_values_that_the_model_never_takes_are_known_roughly() -> None:
    training = FedAvg(steps=STEPS, lr=5e-5, optimizer="adamw")
    model = MomentModel.of(training, gradients(), 1)
    size = torch.full((48, 32), 2e-3)
    found, deviation = solutions(model, torch.full((48, 32), 9.0), size, 1e-3)
    assert bool(torch.isfinite(found).all())
    assert bool((deviation >= size).all())


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("number", [0, 2])
def test_an_unknown_gradient_of_the_usual_size_is_left_by_the_known_ones(schedule: str, number: int) -> None:
    training = FedAvg(steps=STEPS, lr=5e-5, optimizer="adamw", schedule=schedule)
    grads = [own.double() for own in gradients()]
    size = torch.rand(48, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 1e-3
    grads[number] = size * grads[number].sign()
    known = [torch.zeros_like(own) if step == number else own for step, own in enumerate(grads)]
    variances = [size.square() if step == number else torch.zeros_like(size) for step in range(STEPS)]
    shares = [float(step == number) for step in range(STEPS)]
    torch.testing.assert_close(
        unknown_part(training, known, variances, shares, trained(training, grads)), grads[number]
    )


def test_decay_is_the_mean_over_the_steps() -> None:
    training = FedAvg(steps=STEPS, lr=5e-5, optimizer="adamw", schedule="linear", weight_decay=0.1)
    weight = torch.tensor([1.0, -2.0])
    rates = [training.rate_factor(step, STEPS) for step in range(STEPS)]
    torch.testing.assert_close(mean_decay(training, STEPS, weight), 0.1 * sum(rates) / STEPS * weight)
