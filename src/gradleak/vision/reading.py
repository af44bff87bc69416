"""A trained image inverter, and how it reads gradients: an answer, then rounds of matching and correction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Origin
from gradleak.vision.inverter import GradientInverter, Refiner
from gradleak.vision.inverter_settings import ImageInverterSettings
from gradleak.vision.observation import Observation
from gradleak.vision.posterior import PosteriorSettings, most_likely_images
from gradleak.vision.spectral_prior import SpectralPrior
from gradleak.vision.target import ImageTarget

# Tolerances of a gradient's entries at the end of the descent, by the way in which the gradient was sent.
EXACT_TOLERANCE, SIGN_TOLERANCE, PRUNED_TOLERANCE = 3e-4, 1e-3, 3e-3


@dataclass(frozen=True, eq=False)
class Round:
    """One round: the errors of the answer before it, and the network that corrects the answer after matching."""

    errors: SpectralPrior
    refiner: Refiner


@dataclass(frozen=True, eq=False)
class ImageInverter:
    """All that training leaves.

    Attributes:
        origin: the target.
        settings: of networks and training.
        defenses: the clients', as written on the command line.
        prior: the model of images, whose mean is the first answer where there is no perceptron.
        direct: the perceptron, or None.
        rounds: in order.
        examples: number of auxiliary images.
    """

    origin: Origin
    settings: ImageInverterSettings
    defenses: tuple[str, ...]
    prior: SpectralPrior
    direct: GradientInverter | None
    rounds: tuple[Round, ...]
    examples: int = 0

    def first_answer(self, seen: Observation) -> Tensor:
        """Return the answer before any round `[clients, images, channels, height, width]`."""
        count = self.settings.images
        if self.direct is None:
            return self.prior.mean.expand(seen.count, count, *self.prior.mean.shape).clone()
        images, _ = self._answers(self.direct, seen)
        return images

    def settled(self, seen: Observation) -> Observation:
        """Return what was sent with the network's labels where the gradient shows none."""
        if self.direct is None or not bool(seen.doubtful.any()):
            return seen
        _, logits = self._answers(self.direct, seen)
        labels = torch.where(seen.doubtful[:, None], logits.argmax(dim=2), seen.labels)
        return replace(seen, labels=labels, doubtful=torch.zeros_like(seen.doubtful))

    @staticmethod
    def _answers(direct: GradientInverter, seen: Observation) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), torch.autocast(seen.sent.device.type, torch.bfloat16, enabled=seen.sent.is_cuda):
            images, logits = direct(seen.sent)
            return images, logits

    def read(
        self, target: ImageTarget, seen: Observation, rounds: int | None = None, deadline: Deadline | None = None
    ) -> Tensor:
        """Return the images of what clients sent, after all rounds or the first few."""
        seen = self.settled(seen)
        answer = self.first_answer(seen)
        for one in self.rounds[:rounds]:
            settings = round_settings(seen, self.settings.steps)
            found = most_likely_images(target, seen, one.errors.around(answer), answer, settings, deadline)
            estimates = torch.stack([answer, found], dim=2).flatten(0, 1)
            with torch.no_grad():
                answer = one.refiner(estimates).view(answer.shape)
        return answer


def round_settings(seen: Observation, steps: int) -> PosteriorSettings:
    """Return the settings of the descent for the way in which the gradient was sent."""
    if seen.channel == "exact":
        return PosteriorSettings(steps=steps, tolerance=EXACT_TOLERANCE, first_tolerance=0.03)
    if seen.channel == "noise":
        return PosteriorSettings(steps=steps, first_tolerance=max(0.03, seen.deviation), tolerance=seen.deviation)
    return PosteriorSettings(steps=steps, tolerance=SIGN_TOLERANCE if seen.channel == "sign" else PRUNED_TOLERANCE)
