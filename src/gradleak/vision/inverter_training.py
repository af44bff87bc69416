"""Training of LTI's networks for images: first the inverter, then a refiner for each round.

Gradients are never stored: each step draws images, computes the gradients that clients would send and defends them.
Refiners learn from images that the inverter has not seen, since its answers to those that it has are too good.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gradleak.defenses import Defense, defend_each
from gradleak.randomness import hashed_stream
from gradleak.vision.auxiliary import AuxiliaryImages, Pace
from gradleak.vision.half_precision import bfloat16
from gradleak.vision.inverter import GradientInverter, Refiner
from gradleak.vision.inverter_settings import ImageInverterSettings
from gradleak.vision.observation import Observation, observe
from gradleak.vision.posterior import most_likely_images
from gradleak.vision.reading import ImageInverter, Round, round_settings
from gradleak.vision.sample_gradients import flat
from gradleak.vision.spectral_prior import SpectralPrior
from gradleak.vision.target import ImageTarget

CALIBRATION = 2_048  # clients from whose gradients the normalisation is taken, at most
CHUNKS = {"cuda": 1_024}  # clients whose images are searched side by side
CHUNK_ON_CPU = 128
PILOT = 4  # chunks from which the errors' model is fitted
TRIED = 256  # clients on whom the prior's factor is chosen
FACTORS = (0.5, 1.0, 2.0, 4.0)
WARM_UP = 0.03  # of a training, over which the learning rate rises
LABEL_WEIGHT = 1e-3  # of the labels' cross-entropy beside the pixels' squared error
LEAST_ERROR = 1e-4  # mean squared error below which an image counts as found, 40 dB

Report = Callable[[str], None]


@dataclass(frozen=True)
class Example:
    """True images and the answers so far `[clients, images, channels, height, width]`, and what clients sent."""

    truth: Tensor
    before: Tensor
    seen: Observation


@dataclass
class InverterTraining:
    """The training of an image inverter.

    Attributes:
        target: the model.
        auxiliary: the attacker's images, on the target's device.
        defenses: those of the clients, which the attacker knows.
        settings: of networks and training.
        seconds: for each network; None for no limit.
        matching_seconds: for the gradient matching of each round; None for no limit.
        report: called with a line from time to time.
    """

    target: ImageTarget
    auxiliary: AuxiliaryImages
    defenses: Sequence[Defense] = ()
    settings: ImageInverterSettings = field(default_factory=ImageInverterSettings)
    seconds: float | None = None
    matching_seconds: float | None = None
    report: Report = print

    def __post_init__(self) -> None:
        self.stream = hashed_stream(f"image inverter {self.settings.seed}", self.target.device)
        self.shifts = hashed_stream(f"image shifts {self.settings.seed}")
        self.learnt, self.unseen = self.auxiliary.split(self.settings.held_back if self.settings.rounds else 0.0)

    def run(self) -> ImageInverter:
        """Train all networks and return the inverter."""
        inverter = self.start()
        for number in range(self.settings.rounds):
            inverter = self.add_round(inverter, number)
        return inverter

    def start(self) -> ImageInverter:
        """Return the inverter without rounds: the trained perceptron, or the mean image if it has no layers."""
        prior = SpectralPrior.fit(self.auxiliary.images(slice(0, 20_000)))
        direct = self._train_direct() if self.settings.hidden else None
        names = tuple(map(str, self.defenses))
        return ImageInverter(self.target.origin, self.settings, names, prior, direct, (), len(self.auxiliary))

    def sent(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return what clients with these images `[clients, images, …]` send after their defenses."""
        with torch.no_grad():
            gradients = self.target.gradients(images, labels)
        return defend_each(gradients, self.defenses, self.stream) if self.defenses else gradients

    def draw(self, source: AuxiliaryImages, clients: int) -> tuple[Tensor, Tensor]:
        """Draw images `[clients, images, …]` and labels `[clients, images]`."""
        reach, count = self.settings.shift, self.settings.images
        down, across = (torch.randint(-reach, reach + 1, (2,), generator=self.shifts)).tolist()
        images, labels = source.draw(clients * count, self.stream, (down, across))
        return images.view(clients, count, *images.shape[1:]), labels.view(clients, count)

    # --- the inverter ------------------------------------------------------------------------------------------

    def _train_direct(self) -> GradientInverter:
        chosen, device = self.settings, self.target.device
        images, labels = self.draw(self.learnt, min(CALIBRATION, 4 * len(self.learnt)))
        calibration = flat(self.sent(images, labels), list(self.target.parameters))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chosen.seed)
            shape = (chosen.images, *self.target.shape)
            classes = self.target.num_labels
            network = GradientInverter(calibration.shape[1], shape, chosen.hidden, classes, chosen.dropout)
        network.to(device).calibrate(calibration, images)
        steps = math.ceil(chosen.epochs * len(self.learnt) / (chosen.batch * chosen.images))
        pace = Pace(steps, self.seconds)
        optimizer = torch.optim.AdamW(
            network.parameters(), lr=chosen.lr, weight_decay=0.01, fused=device.type == "cuda"
        )
        while pace:
            images, labels = self.draw(self.learnt, chosen.batch)
            sent = flat(self.sent(images, labels), list(self.target.parameters))
            set_rate(optimizer, chosen.lr, pace.done)
            with bfloat16(device):
                answer, logits = network(sent)
            error = matched_error(answer, images).mean()
            wrong = cross_entropy(logits.flatten(0, 1), labels.flatten()) if chosen.images == 1 else error.new_zeros(())
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(error + LABEL_WEIGHT * wrong)
            optimizer.step()
            pace.step += 1
            self._tell("inverter", pace, error)
        return network.eval().requires_grad_(False)

    # --- a round -----------------------------------------------------------------------------------------------

    def add_round(self, inverter: ImageInverter, number: int) -> ImageInverter:
        """Return the inverter with one more round, whose refiner is trained on the held-back images."""
        clients = max(1, self.settings.copies * len(self.unseen) // self.settings.images)
        chunk = min(CHUNKS.get(self.target.device.type, CHUNK_ON_CPU), clients)
        pilot = [self._example(inverter, chunk) for _ in range(min(PILOT, math.ceil(clients / chunk)))]
        errors = SpectralPrior.of_errors(torch.cat([(part.truth - part.before).flatten(0, 1) for part in pilot]))
        factor, tried, before = self._choose_factor(pilot[-1], errors)
        self.report(f"round {number + 1}: prior × {factor:g} gives {tried:.2f} dB, before {before:.2f}")
        prior = errors.around(torch.zeros_like(errors.mean), factor)
        pairs: list[Tensor] = []
        truths: list[Tensor] = []
        pace = Pace(clients, self.matching_seconds)
        while pace or not pairs:
            part = pilot.pop() if pilot else self._example(inverter, chunk)
            settings = round_settings(part.seen, self.settings.steps)
            found = most_likely_images(self.target, part.seen, prior.around(part.before), part.before, settings)
            pairs.append(torch.stack([part.before, found], dim=2).flatten(0, 1))  # [images, 2, channels, h, w]
            truths.append(part.truth.flatten(0, 1))
            pace.step += len(found)
        estimates, truth = torch.cat(pairs), torch.cat(truths)
        reached = decibels(estimates[:, 1], truth)
        self.report(
            f"round {number + 1}: gradient matching of {len(truth):,} images {reached:.2f} dB, {pace.seconds:.0f} s"
        )
        refiner = self._train_refiner(estimates, truth, number)
        return replace(inverter, rounds=(*inverter.rounds, Round(prior, refiner)))

    def _example(self, inverter: ImageInverter, clients: int) -> Example:
        """Return held-back images with what was sent of them, and the inverter's answers so far."""
        images, labels = self.draw(self.unseen, clients)
        # The refiners of batches learn with the labels given: the attack on batches needs them, too.
        known = labels if self.settings.images > 1 else None
        seen = observe(self.target, self.sent(images, labels), known, tuple(map(str, self.defenses)))
        seen = inverter.settled(seen)
        before = inverter.read(self.target, seen)
        return Example(reordered(before, images), before, seen)

    def _choose_factor(self, part: Example, errors: SpectralPrior) -> tuple[float, float, float]:
        """Return by how much to scale the errors' deviations for the best images, how good these are, and were."""
        tried = slice(0, TRIED)
        seen, start, truth = part.seen.select(tried), part.before[tried], part.truth[tried]
        results = []
        for factor in FACTORS:
            settings = round_settings(seen, self.settings.steps)
            found = most_likely_images(self.target, seen, errors.around(start, factor), start, settings)
            results.append((decibels(found, truth), factor))
        best, factor = max(results)
        return factor, best, decibels(start, truth)

    def _train_refiner(self, estimates: Tensor, truth: Tensor, number: int) -> Refiner:
        chosen, device = self.settings, self.target.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(chosen.seed + number + 1)
            refiner = Refiner(estimates.shape[1], chosen.width).to(device)
        border = len(truth) - min(1_000, max(1, len(truth) // 10))  # the last ones only test
        steps = math.ceil(chosen.refiner_epochs * border / chosen.refiner_batch)
        pace = Pace(steps, self.seconds)
        optimizer = torch.optim.AdamW(
            refiner.parameters(), lr=chosen.refiner_lr, weight_decay=0.01, fused=device.type == "cuda"
        )
        while pace:
            rows = torch.randint(border, (chosen.refiner_batch,), generator=self.stream, device=device)
            set_rate(optimizer, chosen.refiner_lr, pace.done)
            with bfloat16(device):
                answer = refiner(estimates[rows])
            error = (answer - truth[rows]).square().flatten(1).mean(dim=1)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward((error + LEAST_ERROR).log().mean())
            optimizer.step()
            pace.step += 1
            self._tell(f"round {number + 1}", pace, error.mean())
        refiner.eval().requires_grad_(False)
        tested = decibels(in_parts(refiner, estimates[border:]), truth[border:])
        learnt = decibels(in_parts(refiner, estimates[: len(truth) - border]), truth[: len(truth) - border])
        self.report(f"round {number + 1}: refiner {tested:.2f} dB on images it has not seen, {learnt:.2f} on others")
        return refiner

    def _tell(self, what: str, pace: Pace, error: Tensor) -> None:
        if pace.step % max(1, pace.steps // 20) == 0 or not pace:
            value = float(error.detach())
            self.report(f"{what}: step {pace.step} of {pace.steps}, error {value:.5f}, {pace.seconds:.0f} s")


@torch.no_grad()
def in_parts(refiner: Refiner, estimates: Tensor) -> Tensor:
    """Return the refiner's answers, computed in parts."""
    parts = [refiner(part) for part in torch.split(estimates, CHUNK_ON_CPU)]
    return torch.cat(parts)


def matched_error(answer: Tensor, truth: Tensor) -> Tensor:
    """Return each client's mean squared error `[clients]`, with the images in the order that fits best."""
    costs = (answer[:, :, None] - truth[:, None]).square().flatten(3).mean(dim=3)  # [clients, answers, images]
    orders = torch.tensor(list(itertools.permutations(range(truth.shape[1]))), device=truth.device)
    places = torch.arange(truth.shape[1], device=truth.device)
    return costs[:, places, orders].mean(dim=2).amin(dim=1)


def reordered(answer: Tensor, truth: Tensor) -> Tensor:
    """Return the true images `[clients, images, …]` in the order that fits the answers best."""
    if truth.shape[1] == 1:
        return truth
    costs = (answer[:, :, None] - truth[:, None]).square().flatten(3).mean(dim=3)
    orders = torch.tensor(list(itertools.permutations(range(truth.shape[1]))), device=truth.device)
    places = torch.arange(truth.shape[1], device=truth.device)
    best = orders[costs[:, places, orders].mean(dim=2).argmin(dim=1)]
    return truth[torch.arange(len(truth), device=truth.device)[:, None], best]


def decibels(found: Tensor, truth: Tensor) -> float:
    """Return the mean PSNR of images after clamping."""
    dimensions = tuple(range(found.ndim - 3, found.ndim))
    error = (found.clamp(0, 1) - truth).square().mean(dim=dimensions)
    return float((-10 * error.clamp_min(1e-12).log10()).mean())


def set_rate(optimizer: torch.optim.Optimizer, largest: float, done: float) -> None:
    """Set the learning rate: a short rise, then a cosine to zero."""
    rate = largest * min(1.0, (done + 1e-3) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * done))
    for group in optimizer.param_groups:
        group["lr"] = rate
