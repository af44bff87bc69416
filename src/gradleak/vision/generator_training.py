"""Training of the DCGAN: hinge loss, Adam, an average of the generator's weights over the steps.

On a GPU the networks compute in bfloat16, with the channels last, which is where its matrix units are fast; weights,
their updates and their average stay in single precision.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from gradleak.randomness import hashed_stream
from gradleak.vision.auxiliary import AuxiliaryImages, Pace
from gradleak.vision.generator import Critic, Generator
from gradleak.vision.half_precision import bfloat16

AVERAGE = 0.999
RATE = 2e-4  # learning rate of the generator, twice that for the critic; falls to zero over the second half


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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator, critic = Generator(width).to(device), Critic(width).to(device, memory_format=torch.channels_last)
    averaged = copy.deepcopy(generator).requires_grad_(False)
    fused = device.type == "cuda"
    makers = torch.optim.Adam(generator.parameters(), lr=RATE, betas=(0.0, 0.9), fused=fused)
    judges = torch.optim.Adam(critic.parameters(), lr=2 * RATE, betas=(0.0, 0.9), fused=fused)
    pace = Pace(steps, seconds)
    while pace:
        left = min(1.0, 2 * (1 - pace.done))  # constant, then linear to zero over the second half
        makers.param_groups[0]["lr"], judges.param_groups[0]["lr"] = RATE * left, 2 * RATE * left
        real, _ = auxiliary.draw(batch, stream)
        codes = torch.randn(2, batch, generator.latent, generator=stream, device=device)
        with bfloat16(device):
            with torch.no_grad():
                drawn = generator(codes[0])
            shown = torch.cat([real, drawn.float()]).contiguous(memory_format=torch.channels_last)
            scores = critic(shown).float()
        judged = (1 - scores[:batch]).relu().mean() + (1 + scores[batch:]).relu().mean()
        judges.zero_grad(set_to_none=True)
        torch.autograd.backward(judged)
        judges.step()
        with bfloat16(device):
            made = -critic(generator(codes[1])).float().mean()
        makers.zero_grad(set_to_none=True)
        torch.autograd.backward(made)
        makers.step()
        pace.step += 1
        keep = min(AVERAGE, 1 - 1 / pace.step)
        torch._foreach_lerp_(list(averaged.parameters()), [p.detach() for p in generator.parameters()], 1 - keep)
        if pace.step % max(1, steps // 20) == 0 or not pace:
            report(f"generator: step {pace.step} of {steps}, critic {float(judged.detach()):.3f}, {pace.seconds:.0f} s")
    return averaged.eval()
