"""The DCGAN of GI-GIP: its parts, and a training of a few steps."""

from __future__ import annotations

import pytest
import torch
from small_images import smooth_images

from gradleak.vision.auxiliary import AuxiliaryImages
from gradleak.vision.data import load_images
from gradleak.vision.generator import Critic, SpectralConvolution
from gradleak.vision.generator_storage import load_generator
from gradleak.vision.generator_training import PrincipalCodes, train_generator
from gradleak.vision.target import load_image_target


def images_of_32(count: int) -> AuxiliaryImages:
    large = torch.nn.functional.interpolate(smooth_images(count), size=32)
    return AuxiliaryImages((large * 255).byte(), torch.zeros(count, dtype=torch.long))


def test_a_spectral_convolution_stretches_nothing() -> None:
    torch.manual_seed(0)
    layer = SpectralConvolution(4, 6, 3)
    with torch.no_grad():
        layer.weight *= 5
        for _ in range(50):
            layer(torch.zeros(1, 4, 3, 3))  # each call is a step of power iteration
        unit = torch.nn.functional.normalize(torch.randn(200, 36), dim=1).view(200, 4, 3, 3)
        most = layer(unit).flatten(1).norm(dim=1).max()
        largest = torch.linalg.matrix_norm(layer.weight.flatten(1), 2)
        direct = layer(layer.weight[:1] / layer.weight[:1].norm()).flatten(1)
    assert float(most) <= 1 + 1e-4
    expected = layer.weight.flatten(1) @ layer.weight[0].flatten() / layer.weight[0].norm() / largest
    torch.testing.assert_close(direct[0], expected.detach(), atol=1e-4, rtol=1e-3)


def test_the_critic_gives_one_score_an_image() -> None:
    assert Critic(4)(torch.rand(3, 3, 32, 32)).shape == (3,)


def test_principal_codes_look_like_random_ones() -> None:
    images = smooth_images(400)
    torch.manual_seed(0)
    codes = PrincipalCodes.of(images[:300], 16)(images[300:])
    assert codes.shape == (100, 16)
    assert float(codes.mean()) == pytest.approx(0, abs=0.1)
    assert float(codes.std()) == pytest.approx(1, abs=0.15)


def test_codes_beyond_the_images_components_are_zero() -> None:
    images = smooth_images(5)
    codes = PrincipalCodes.of(images, 16)(images)
    assert (codes[:, 4:] == 0).all()
    assert (codes[:, :4] != 0).any(dim=0).all()


def test_training_learns_to_reconstruct_and_is_repeatable() -> None:
    own = images_of_32(64)
    told: list[str] = []
    first = train_generator(own, steps=12, batch=16, width=8, report=told.append)
    again = train_generator(own, steps=12, batch=16, width=8, report=told.append)
    for one, two in zip(first.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, two)
    errors = [float(line.split("reconstruction ")[1].split(",")[0]) for line in told[: len(told) // 2]]
    assert errors[-1] < errors[0]


def test_the_shipped_generator_draws_images_like_the_samples() -> None:
    generator, notes = load_generator("cifar10", load_image_target("lenet"))
    assert notes == ("generator: DCGAN of 50,000 training images of CIFAR-10",)
    torch.manual_seed(0)
    drawn = generator(torch.randn(64, generator.latent))
    true = load_images("cifar10-sample").pixels.float() / 255
    torch.testing.assert_close(drawn.mean(dim=(0, 2, 3)), true.mean(dim=(0, 2, 3)), atol=0.05, rtol=0)
    roughness = [float((some.diff(dim=-1).square().mean().sqrt()) / some.std()) for some in (drawn, true)]
    assert roughness[0] == pytest.approx(roughness[1], abs=0.08)  # 1.5 before training
