"""The most likely images: gradient matching with a Gaussian prior, in the prior's own coordinates.

An inverter's answer is a good start and no more than that: its gradient does not match what was sent. A few steps of
descent on (negative log-likelihood of what was sent) + ½ ‖code‖² move it where both agree. In the prior's coordinates
every frequency has the same expected size, which makes plain Adam converge in some hundred steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.settings import setting
from gradleak.vision.observation import Observation, negative_log_likelihood
from gradleak.vision.sample_gradients import flat
from gradleak.vision.spectral_prior import SpectralPrior
from gradleak.vision.target import ImageTarget


@dataclass(frozen=True, kw_only=True)
class PosteriorSettings:
    """How the most likely images are searched."""

    steps: int = setting(150, "steps of the descent", least=0)
    lr: float = setting(0.2, "learning rate of Adam at the start; falls to zero by a cosine", above=0)
    first_tolerance: float = setting(0.1, "tolerance of a gradient's entries at the start", above=0)
    tolerance: float = setting(0.003, "tolerance at the end; noise has its own", above=0)


def most_likely_images(
    target: ImageTarget,
    seen: Observation,
    prior: SpectralPrior,
    start: Tensor,
    settings: PosteriorSettings,
    deadline: Deadline | None = None,
) -> Tensor:
    """Return the images `[clients, images, channels, height, width]` that a descent from `start` finds.

    Args:
        target: the model.
        seen: what the clients sent.
        prior: the model of images, whose mean may differ from image to image.
        start: images of the same shape as the result.
        settings: of the descent.
        deadline: ends it earlier.
    """
    code = prior.code(start).detach().requires_grad_()
    optimizer = torch.optim.Adam([code], lr=settings.lr, betas=(0.9, 0.99))
    for step in range(settings.steps):
        if deadline is not None and deadline.passed:
            break
        done = step / settings.steps
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * 0.5 * (1 + math.cos(math.pi * done))
        tolerance = settings.first_tolerance * (settings.tolerance / settings.first_tolerance) ** min(1.0, 1.5 * done)
        gradients = flat(target.gradients(prior.image(code), seen.labels))
        loss = negative_log_likelihood(seen, gradients, tolerance).sum() + 0.5 * code.square().sum()
        (code.grad,) = torch.autograd.grad(loss, code)
        optimizer.step()
    return prior.image(code.detach())
