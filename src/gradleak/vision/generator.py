"""A small DCGAN: the generator is GI-GIP's prior on images, the critic trains it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it
from torch.nn.utils.parametrizations import spectral_norm

LATENT = 128
FIRST = 4  # pixels of the first map
KERNEL, STRIDE, PADDING = 4, 2, 1


class Generator(nn.Module):
    """Four transposed convolutions from a latent code to an image of 3 × 32 × 32 (Radford et al. 2016).

    `forward` may be given weights of its own for each image: GI-GIP searches them, too. A transposed convolution is
    then a matrix product for each image, whose columns are added up by `fold`.

    Args:
        width: channels of the last hidden map; twice and four times as many before it.
        latent: numbers of a code.
    """

    def __init__(self, width: int = 64, latent: int = LATENT) -> None:
        super().__init__()
        self.width, self.latent = width, latent
        self.maps = (4 * width, 2 * width, width, 3)
        self.register_parameter("start", nn.Parameter(torch.randn(latent, self.maps[0] * FIRST**2) / latent**0.5))
        self.register_parameter("shift", nn.Parameter(torch.zeros(self.maps[0] * FIRST**2)))
        for number, (inside, outside) in enumerate(zip(self.maps, self.maps[1:], strict=False)):
            # A pixel of the output receives (kernel / stride)² = 4 products from each input map.
            kernel = torch.randn(inside, outside * KERNEL**2) * (2 / (4 * inside)) ** 0.5
            self.register_parameter(f"kernel{number}", nn.Parameter(kernel))
            self.register_parameter(f"bias{number}", nn.Parameter(torch.zeros(outside)))
            self.register_parameter(f"gain{number}", nn.Parameter(torch.ones(inside)))

    def own_weights(self, images: int) -> dict[str, Tensor]:
        """Return a copy of all weights for each of some images `[images, *shape]`."""
        return {n: p.detach().expand(images, *p.shape).clone() for n, p in self.named_parameters()}

    def forward(self, codes: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return images in [0, 1] `[images, 3, 32, 32]` of codes `[images, latent]`."""
        own = weights or {name: parameter[None] for name, parameter in self.named_parameters()}
        flat = (codes[:, None, :] @ own["start"])[:, 0] + own["shift"]
        signal = flat.view(-1, self.maps[0], FIRST, FIRST)
        if weights is None:
            signal = signal.contiguous(memory_format=torch.channels_last)  # as a GPU convolves fastest
        for number in range(len(self.maps) - 1):
            gain = own[f"gain{number}"][:, :, None, None]
            signal = F.leaky_relu(_normalised(signal) * gain, 0.2)
            signal = _transposed_convolution(signal, own[f"kernel{number}"]) + own[f"bias{number}"][:, :, None, None]
        return torch.sigmoid(signal)


def _normalised(signal: Tensor) -> Tensor:
    """Normalise over the channels of each pixel; unlike batch normalisation, images stay independent."""
    return signal * torch.rsqrt(signal.square().mean(dim=1, keepdim=True) + 1e-6)


def _transposed_convolution(signal: Tensor, kernel: Tensor) -> Tensor:
    """Return the transposed convolution with kernels `[images or 1, in, out · 16]`."""
    if len(kernel) == 1:
        shared = kernel[0].view(kernel.shape[1], -1, KERNEL, KERNEL)
        return F.conv_transpose2d(signal, shared, None, STRIDE, PADDING)
    columns = kernel.transpose(1, 2) @ signal.flatten(2)  # [images, out · 16, places]
    pieces = columns.view(len(signal), -1, KERNEL, KERNEL, *signal.shape[2:])
    rows = _interleaved(pieces.unbind(2), 3)  # [images, out, 4, 2 · height, width]
    return _interleaved(rows.unbind(2), 3)


def _interleaved(pieces: Sequence[Tensor], dim: int) -> Tensor:
    """Add up the four offsets of a kernel of 4 with stride 2 and padding 1, along a dimension that is doubled.

    Offset 1 falls on place 2 h of the output, offset 2 on 2 h + 1, offset 3 on 2 h + 2 and offset 0 on 2 h − 1.
    """
    before, even, odd, after = pieces
    last = even.shape[dim] - 1
    nothing = torch.zeros_like(even.narrow(dim, 0, 1))
    even = even + torch.cat([nothing, after.narrow(dim, 0, last)], dim)
    odd = odd + torch.cat([before.narrow(dim, 1, last), nothing], dim)
    return torch.stack([even, odd], dim + 1).flatten(dim, dim + 1)


class Critic(nn.Module):
    """Scores images: larger for real ones. Spectral normalisation bounds its slope (Miyato et al. 2018)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width)
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            layers += [spectral_norm(nn.Conv2d(inside, outside, 4, 2, 1)), nn.LeakyReLU(0.1)]
            layers += [spectral_norm(nn.Conv2d(outside, outside, 3, 1, 1)), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), spectral_norm(nn.Linear(4 * width * 16, 1)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores `[images]` of images in [0, 1]."""
        return cast(Tensor, self.layers(2 * images - 1))[:, 0]
