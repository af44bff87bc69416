from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradleak.vision.networks import LeNet, ResNet20
from gradleak.vision.sample_gradients import chain_gradients, flat, is_chain, sample_gradients, vmapped_gradients
from gradleak.vision.target import load_image_target


def small_lenet() -> LeNet:
    torch.manual_seed(0)
    return LeNet(num_classes=3, size=12)


def test_closed_form_equals_autograd_image_by_image() -> None:
    model, images, labels = small_lenet(), torch.rand(3, 3, 12, 12), torch.tensor([0, 2, 1])
    found = chain_gradients(model, images, labels)
    for number in range(3):
        loss = cross_entropy(model(images[number : number + 1]), labels[number : number + 1])
        for (name, _), slope in zip(
            model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            torch.testing.assert_close(found[name][number], slope, atol=1e-6, rtol=1e-4)


def test_closed_form_is_differentiable_in_the_images_as_the_general_way_is() -> None:
    model, labels = small_lenet(), torch.tensor([0, 2])
    images = torch.rand(2, 3, 12, 12, requires_grad=True)
    ways = [flat(way(model, images, labels)).square().sum() for way in (chain_gradients, vmapped_gradients)]
    one, two = (torch.autograd.grad(total, images)[0] for total in ways)
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-3)


def test_lenet_has_the_papers_weights() -> None:
    target = load_image_target("lenet")
    assert sum(parameter.numel() for parameter in target.parameters.values()) == 15_826
    assert target.seed == 1234
    assert max(float(parameter.abs().max()) for parameter in target.parameters.values()) <= 0.5


def test_a_residual_network_goes_the_general_way() -> None:
    model = ResNet20(num_classes=2).eval().requires_grad_(False)
    assert not is_chain(model)
    gradients = sample_gradients(model, torch.rand(1, 3, 8, 8), torch.tensor([1]))
    assert gradients["fc.weight"].shape == (1, 2, 64)


@pytest.mark.parametrize("count", [1, 3])
def test_the_gradient_of_a_batch_is_the_mean_of_its_images(count: int) -> None:
    target = load_image_target("lenet", size=12, num_labels=3)
    images, labels = torch.rand(2, count, 3, 12, 12), torch.randint(3, (2, count))
    found = target.gradients(images, labels)["fc.weight"]
    expected = torch.stack(
        [
            sample_gradients(target.model, own, classes)["fc.weight"].mean(dim=0)
            for own, classes in zip(images, labels, strict=True)
        ]
    )
    torch.testing.assert_close(found, expected)
