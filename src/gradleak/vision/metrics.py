"""How close reconstructed images are to the true ones: MSE, PSNR and SSIM; `lpips` has the perceptual distance."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

WINDOW, DEVIATION = 11, 1.5  # of the Gaussian window of SSIM (Wang et al. 2004)
STABILISERS = (0.01**2, 0.03**2)
LEAST_MSE = 1e-12  # 120 dB


def mean_squared_errors(found: Tensor, truth: Tensor) -> Tensor:
    """Return the MSE of each image `[images]`, after clamping to [0, 1]."""
    return (found.clamp(0, 1) - truth).square().flatten(1).mean(dim=1)


def peak_signal_to_noise(found: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR of each image in dB `[images]`; the paper averages these."""
    return -10 * mean_squared_errors(found, truth).clamp_min(LEAST_MSE).log10()


def structural_similarity(found: Tensor, truth: Tensor) -> Tensor:
    """Return the SSIM of each image `[images]`: 1 for equal images (Wang et al. 2004, Gaussian window of 11)."""
    channels = truth.shape[1]
    places = torch.arange(WINDOW, device=truth.device, dtype=truth.dtype) - WINDOW // 2
    bell = torch.exp(-(places**2) / (2 * DEVIATION**2))
    window = (bell[:, None] * bell / bell.sum() ** 2).expand(channels, 1, WINDOW, WINDOW)

    def blurred(images: Tensor) -> Tensor:
        return F.conv2d(images, window, groups=channels)

    one, two = found.clamp(0, 1), truth
    mean1, mean2 = blurred(one), blurred(two)
    variance1, variance2 = blurred(one * one) - mean1**2, blurred(two * two) - mean2**2
    covariance = blurred(one * two) - mean1 * mean2
    first, second = STABILISERS
    similarity = (2 * mean1 * mean2 + first) * (2 * covariance + second)
    return (similarity / ((mean1**2 + mean2**2 + first) * (variance1 + variance2 + second))).flatten(1).mean(dim=1)


def best_order(found: Tensor, truth: Tensor) -> Tensor:
    """Return the found images `[images, …]` in the order in which they fit the true ones best, by MSE."""
    costs = (found[:, None] - truth[None]).square().flatten(2).mean(dim=2)
    orders = itertools.permutations(range(len(found)))
    best = min(orders, key=lambda order: float(sum(costs[place, number] for number, place in enumerate(order))))
    return found[list(best)]


def image_scores(found: Tensor, truth: Tensor) -> dict[str, list[float]]:
    """Return `mse`, `psnr` and `ssim` of each image of `[images, channels, height, width]`."""
    scores = {"mse": mean_squared_errors(found, truth), "psnr": peak_signal_to_noise(found, truth)}
    if min(truth.shape[-2:]) >= WINDOW:
        scores["ssim"] = structural_similarity(found, truth)
    return {name: values.tolist() for name, values in scores.items()}
