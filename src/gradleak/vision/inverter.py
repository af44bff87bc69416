"""LTI's networks for images: the inverter, which maps a gradient to images, and refiners, which correct its answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

CLIP = 8.0  # standard deviations; gradients have heavy tails


class GradientInverter(nn.Module):
    """LTI's multilayer perceptron (section 4.1): from all entries of a gradient to the pixels of its images.

    Args:
        entries: of a gradient.
        shape: images, channels, height and width of the answer.
        hidden: widths of the hidden layers.
        classes: number of classes; the network reads labels, too, which pruning may hide from the closed form.
        dropout: share of hidden units that training drops.
    """

    mean: Tensor
    scale: Tensor
    centre: Tensor

    def __init__(
        self, entries: int, shape: Sequence[int], hidden: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.shape, self.classes = tuple(shape), classes
        widths = [entries, *hidden]
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            layers += [nn.Linear(inside, outside), nn.GELU(), nn.Dropout(dropout)]
        last = nn.Linear(widths[-1], math.prod(self.shape) + self.shape[0] * classes)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*layers, last)
        self.register_buffer("mean", torch.zeros(entries))
        self.register_buffer("scale", torch.ones(entries))
        self.register_buffer("centre", torch.full(self.shape[1:], 0.5))

    def calibrate(self, sent: Tensor, images: Tensor) -> None:
        """Set the normalisation of entries `[clients, entries]`, and the mean image, from examples."""
        deviation = sent.std(dim=0)
        self.mean.copy_(sent.mean(dim=0))
        self.scale.copy_(torch.where(deviation > 0, 1 / deviation.clamp_min(1e-8), 0.0))
        self.centre.copy_(images.flatten(0, 1).mean(dim=0))

    def forward(self, sent: Tensor) -> tuple[Tensor, Tensor]:
        """Return images `[clients, images, channels, height, width]` and logits of labels `[clients, images, classes]`.

        Args:
            sent: gradients `[clients, entries]`.
        """
        features = ((sent - self.mean) * self.scale).clamp(-CLIP, CLIP)
        answer = cast(Tensor, self.layers(features)).float()
        pixels, logits = torch.split(answer, [math.prod(self.shape), self.shape[0] * self.classes], dim=1)
        return pixels.view(-1, *self.shape) + self.centre, logits.view(-1, self.shape[0], self.classes)


class _Convolutions(nn.Module):
    """Two convolutions with group normalisation and a residual connection."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(8, outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.silu(self.norm(self.first(images)))
        return self.skip(images) + nn.functional.silu(self.second(hidden))


class Refiner(nn.Module):
    """A small U-Net that corrects an estimate of an image, given several.

    Args:
        estimates: number of images that it reads; the last one is corrected.
        width: channels at full resolution; twice as many below.
        channels: of an image.
    """

    def __init__(self, estimates: int = 2, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        self.estimates, self.width, self.channels = estimates, width, channels
        twice = 2 * width
        self.enter = nn.Conv2d(estimates * channels + 2, width, 3, padding=1)
        self.down = nn.ModuleList(
            [_Convolutions(width, width), _Convolutions(width, twice), _Convolutions(twice, twice)]
        )
        self.up = nn.ModuleList([_Convolutions(2 * twice, width), _Convolutions(2 * width, width)])
        self.leave = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(cast(Tensor, self.leave.bias))

    def forward(self, estimates: Tensor) -> Tensor:
        """Return corrected images `[images, channels, height, width]` of `[images, estimates, channels, h, w]`."""
        height, width = estimates.shape[-2:]
        rows = torch.linspace(-1, 1, height, device=estimates.device)[:, None].expand(height, width)
        columns = torch.linspace(-1, 1, width, device=estimates.device)[None, :].expand(height, width)
        places = torch.stack([rows, columns]).expand(len(estimates), -1, -1, -1)
        signal = self.enter(torch.cat([2 * estimates.flatten(1, 2) - 1, places], dim=1))
        passed = []
        for number, block in enumerate(self.down):
            signal = block(nn.functional.avg_pool2d(signal, 2) if number else signal)
            passed.append(signal)
        for block, beside in zip(self.up, (passed[1], passed[0]), strict=True):
            signal = nn.functional.interpolate(signal, size=beside.shape[-2:], mode="nearest")
            signal = block(torch.cat([signal, beside], dim=1))
        return estimates[:, -1] + self.leave(signal).float()
