"""Training of the DCGAN: hinge loss, Adam, an average of the generator's weights over the steps.

Beside the adversarial loss on random codes there is one of reconstruction. The code of a real image is its first
principal components in units of their deviations, which are distributed nearly as random codes are, and the generator
is to draw the image from it. So every image is near one that the generator draws, and images vary smoothly with codes,
which is what a search for codes needs; an adversarial loss alone asks for neither.

On a GPU the networks compute in bfloat16, with the channels last, which is where its matrix units are fast; weights,
their updates and their average stay in single precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from gradleak.randomness import hashed_stream
from gradleak.vision.auxiliary import AuxiliaryImages, Pace
from gradleak.vision.generator import Critic, Generator
from gradleak.vision.half_precision import bfloat16

AVERAGE = 0.999
RATE = 2e-4  # learning rate of the generator, twice that for the critic; falls to zero over the second half
RECONSTRUCTION = 100.0  # weight of the mean squared error of reconstructed images
MEASURED = 10_000  # images of which the principal components are taken


@dataclass(frozen=True)
class PrincipalCodes:
    """Codes of images: their principal components, in units of their deviations.

    Attributes:
        mean: the mean image `[pixels]`.
        directions: of the components, divided by their deviations `[pixels, latent]`.
    """

    mean: Tensor
    directions: Tensor

    @classmethod
    def of(cls, images: Tensor, latent: int) -> PrincipalCodes:
        """Return the codes of images like these; the components are found by torch's global random numbers."""
        flat = images.flatten(1)
        mean = flat.mean(dim=0)
        kept = min(latent, len(flat) - 1, flat.shape[1])
        _, sizes, directions = torch.svd_lowrank(flat - mean, q=kept, niter=4)
        deviations = sizes / len(flat) ** 0.5
        scaled = directions / deviations.clamp_min(1e-6)
        return cls(mean, torch.nn.functional.pad(scaled, (0, latent - kept)))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the codes `[images, latent]`."""
        return (images.flatten(1) - self.mean) @ self.directions


def train_generator(
    auxiliary: AuxiliaryImages,
    *,
    steps: int = 20_000,
    batch: int = 256,
    width: int = 64,
    seed: int = 0,
    seconds: float | None = None,
    report: Callable[[str], None] = print,
) -> Generator:
    """Train a generator of images like the auxiliary ones.

    Args:
        auxiliary: on the device that trains.
        steps: of generator and critic each.
        batch: images in a step.
        width: channels of the last hidden map.
        seed: of everything random.
        seconds: after which it ends in any case.
        report: called with a line from time to time.
    """
    device = auxiliary.pixels.device
    stream = hashed_stream(f"generator {seed}", device)
    pace = Pace(steps, seconds)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        generator, critic = Generator(width).to(device), Critic(width).to(device)
        principal = PrincipalCodes.of(auxiliary.images(slice(0, MEASURED)), generator.latent)
    averaged = copy.deepcopy(generator).requires_grad_(False)
    makers = torch.optim.Adam(generator.parameters(), lr=RATE, betas=(0.0, 0.9), fused=True)
    judges = torch.optim.Adam(critic.parameters(), lr=2 * RATE, betas=(0.0, 0.9), fused=True)
    while pace:
        left = min(1.0, 2 * (1 - pace.done))  # constant, then linear to zero over the second half
        makers.param_groups[0]["lr"], judges.param_groups[0]["lr"] = RATE * left, 2 * RATE * left
        real, _ = auxiliary.draw(batch, stream)
        codes = torch.randn(2, batch, generator.latent, generator=stream, device=device)
        judged = _judged(generator, critic, real, codes[0])
        judges.zero_grad(set_to_none=True)
        torch.autograd.backward(judged)
        judges.step()
        every = torch.cat([codes[1], principal(real)])
        with bfloat16(device):
            drawn = generator(every)
            fooled = -critic(drawn[:batch]).float().mean()
        error = mse_loss(drawn[batch:], real)
        makers.zero_grad(set_to_none=True)
        torch.autograd.backward(fooled + RECONSTRUCTION * error)
        makers.step()
        pace.step += 1
        keep = min(AVERAGE, 1 - 1 / pace.step)
        torch._foreach_lerp_(list(averaged.parameters()), [p.detach() for p in generator.parameters()], 1 - keep)
        if pace.step % max(1, steps // 20) == 0 or not pace:
            told = f"critic {float(judged.detach()):.3f}, reconstruction {float(error.detach()):.4f}"
            report(f"generator: step {pace.step} of {steps}, {told}, {pace.seconds:.0f} s")
    return averaged.eval()


def _judged(generator: Generator, critic: Critic, real: Tensor, codes: Tensor) -> Tensor:
    """Return the critic's hinge loss on real images and on images of codes."""
    with bfloat16(real.device):
        with torch.no_grad():
            drawn = generator(codes)
        shown = torch.cat([real, drawn]).contiguous(memory_format=torch.channels_last)
        scores = critic(shown).float()
    return (1 - scores[: len(real)]).relu().mean() + (1 + scores[len(real) :]).relu().mean()
