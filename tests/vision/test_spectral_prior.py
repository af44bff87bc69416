from __future__ import annotations

import torch
from scipy.fft import dctn
from small_images import smooth_images

from gradleak.vision.spectral_prior import SpectralPrior, cosine_transform


def test_cosine_transform_is_scipys() -> None:
    images = smooth_images(2)
    expected = dctn(images.numpy(), type=2, norm="ortho", axes=(2, 3))
    torch.testing.assert_close(cosine_transform(images), torch.from_numpy(expected), atol=1e-5, rtol=1e-4)


def test_code_is_the_inverse_of_image() -> None:
    prior = SpectralPrior.fit(smooth_images(50))
    images = smooth_images(3, seed=5)
    torch.testing.assert_close(prior.image(prior.code(images)), images, atol=1e-4, rtol=1e-4)


def test_codes_of_the_fitted_images_have_unit_variance() -> None:
    images = smooth_images(400)
    prior = SpectralPrior.fit(images)
    large = prior.scale > 0.01
    spread = prior.code(images).square().mean(dim=0).sqrt()[large]
    assert large.sum() > 10
    torch.testing.assert_close(spread, torch.ones_like(spread), atol=0.01, rtol=0)


def test_saved_tensors_give_the_same_prior() -> None:
    prior = SpectralPrior.fit(smooth_images(20)).around(torch.zeros(3, 16, 16), 2.0)
    again = SpectralPrior.from_tensors(prior.tensors("a"), "a")
    assert torch.equal(again.scale, prior.scale)
    assert torch.equal(again.mean, prior.mean)
