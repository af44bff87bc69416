"""A small DCGAN: the generator is GI-GIP's prior on images, the critic trains it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

LATENT = 128
FIRST = 4  # pixels of the first map
KERNEL, STRIDE, PADDING = 4, 2, 1
SLOPE = 0.2  # of the leaky ReLU
LAYER = ("kernel", "bias", "gain")


class Generator(nn.Module):
    """Four transposed convolutions from a latent code to an image of 3 × 32 × 32 (Radford et al. 2016).

    GI-GIP searches weights for each image (`draw`). A transposed convolution is then a matrix product for each image,
    whose columns are added up where they overlap.

    Args:
        width: channels of the last hidden map; twice and four times as many before it.
        latent: numbers of a code.
    """

    def __init__(self, width: int = 64, latent: int = LATENT) -> None:
        super().__init__()
        self.width, self.latent = width, latent
        self.maps = (4 * width, 2 * width, width, 3)
        self.start = nn.Parameter(torch.randn(latent, self.maps[0] * FIRST**2) / latent**0.5)
        self.shift = nn.Parameter(torch.zeros(self.maps[0] * FIRST**2))
        for number, (inside, outside) in enumerate(itertools.pairwise(self.maps)):
            # A pixel of the output receives (kernel / stride)² = 4 products from each input map.
            kernel = torch.randn(inside, outside * KERNEL**2) * (2 / (4 * inside)) ** 0.5
            self.register_parameter(f"kernel{number}", nn.Parameter(kernel))
            self.register_parameter(f"bias{number}", nn.Parameter(torch.zeros(outside)))
            self.register_parameter(f"gain{number}", nn.Parameter(torch.ones(inside)))

    def features(self, codes: Tensor) -> Tensor:
        """Return the first map `[images, channels · 16]` of codes `[images, latent]`."""
        return codes @ self.start + self.shift

    def forward(self, codes: Tensor) -> Tensor:
        """Return images in [0, 1] `[images, 3, 32, 32]` of codes `[images, latent]`."""
        signal = self.features(codes).view(-1, self.maps[0], FIRST, FIRST)
        signal = signal.contiguous(memory_format=torch.channels_last)  # as a GPU convolves fastest
        for number, (inside, outside) in enumerate(itertools.pairwise(self.maps)):
            kernel, bias, gain = (self.get_parameter(f"{name}{number}") for name in LAYER)
            signal = F.leaky_relu(_normalised(signal) * gain[:, None, None], SLOPE)
            kernels = kernel.view(inside, outside, KERNEL, KERNEL)
            signal = F.conv_transpose2d(signal, kernels, bias, STRIDE, PADDING)
        return torch.sigmoid(signal.float())  # the steps of half precision would tell drawn images from real ones

    def own_weights(self, images: int) -> dict[str, Tensor]:
        """Return weights of all layers after the first map, a copy for each of some images `[images, *shape]`.

        Kernels are `[images, out · 16, in]`, as `draw` multiplies them.
        """
        own = {}
        for name in (f"{kind}{number}" for number in range(len(self.maps) - 1) for kind in LAYER):
            weight = self.get_parameter(name).detach()
            laid_out = (weight.T if weight.ndim == 2 else weight)[None]
            own[name] = laid_out.repeat(images, *(1 for _ in weight.shape))
        return own

    def draw(self, features: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return images of first maps `[images, channels · 16]`, each with weights of its own (`own_weights`)."""
        signal = features.view(-1, self.maps[0], FIRST, FIRST)
        for number in range(len(self.maps) - 1):
            kernel, bias, gain = (weights[f"{name}{number}"] for name in LAYER)
            signal = F.leaky_relu(_normalised(signal) * gain[:, :, None, None], SLOPE)
            signal = _own_convolution(signal, kernel) + bias[:, :, None, None]
        return torch.sigmoid(signal)


def _normalised(signal: Tensor) -> Tensor:
    """Normalise over the channels of each pixel; unlike batch normalisation, images stay independent."""
    return signal * torch.rsqrt(signal.square().mean(dim=1, keepdim=True) + 1e-6)


def _own_convolution(signal: Tensor, kernel: Tensor) -> Tensor:
    """Return the transposed convolution of each image with a kernel of its own `[images, out · 16, in]`."""
    columns = kernel @ signal.flatten(2)  # [images, out · 16, places]
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


class SpectralConvolution(nn.Module):
    """A convolution whose kernel is divided by its largest singular value (Miyato et al. 2018).

    The value comes from one step of power iteration at each call, in single precision: torch's own parametrisation
    computes it in the precision of the surrounding autocast.

    Args:
        inside: input channels.
        outside: output channels.
        kernel: pixels.
        stride: pixels.
        padding: pixels.
    """

    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        deviation = (inside * kernel**2) ** -0.5
        self.weight = nn.Parameter(deviation * torch.randn(outside, inside, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(outside))
        self.direction: Tensor
        self.register_buffer("direction", F.normalize(torch.randn(outside), dim=0))

    def forward(self, images: Tensor) -> Tensor:
        """Return the maps `[images, out, height, width]`."""
        with torch.autocast(images.device.type, enabled=False):
            matrix = self.weight.flatten(1)
            with torch.no_grad():
                across = F.normalize(matrix.T @ self.direction, dim=0)
                along = F.normalize(matrix @ across, dim=0)
                self.direction.copy_(along)
            kernel = self.weight / (along @ (matrix @ across))
        return F.conv2d(images, kernel, self.bias, self.stride, self.padding)


class Critic(nn.Module):
    """Scores images: larger for real ones. Spectral normalisation bounds its slope."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = (3, width, 2 * width, 4 * width)
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            layers += [SpectralConvolution(inside, outside, KERNEL, STRIDE, PADDING), nn.LeakyReLU(0.1)]
            layers += [SpectralConvolution(outside, outside, 3, 1, 1), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*layers, SpectralConvolution(4 * width, 1, FIRST))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores `[images]` of images in [0, 1]."""
        return cast(Tensor, self.layers(2 * images - 1)).flatten()
