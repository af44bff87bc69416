"""A Gaussian model of images, or of an estimate's errors: independent frequencies of three colour components.

An image is `mean + T(scale · u)` with standard normal `u`, where T is the inverse discrete cosine transform of each
colour component, and then the rotation of the components back to channels. Natural images are nearly stationary, so
that this comes close to their full covariance (3,072² numbers for 3 × 32 × 32) with 6,153 of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

FLOOR = 1e-3  # least standard deviation of a coefficient: below a fourth of a grey level of 256


@dataclass(frozen=True)
class SpectralPrior:
    """Mean, colour components and standard deviations of the cosine coefficients.

    Attributes:
        mean: `[…, channels, height, width]`.
        colours: orthogonal, a colour component in each row `[components, channels]`.
        scale: standard deviations `[components, height, width]`.
    """

    mean: Tensor
    colours: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, images: Tensor) -> SpectralPrior:
        """Return the model of some images `[images, channels, height, width]`."""
        mean = images.mean(dim=0)
        return replace(cls.of_errors(images - mean), mean=mean)

    @classmethod
    def of_errors(cls, errors: Tensor) -> SpectralPrior:
        """Return the model of errors `[images, channels, height, width]` around a mean of zero."""
        channels = errors.transpose(0, 1).flatten(1)
        colours = torch.linalg.eigh(channels @ channels.T / channels.shape[1]).eigenvectors.T
        spectrum = cosine_transform(torch.einsum("kc,nchw->nkhw", colours, errors))
        scale = spectrum.square().mean(dim=0).sqrt().clamp_min(FLOOR)
        return cls(torch.zeros_like(errors[0]), colours, scale)

    def around(self, mean: Tensor, factor: float = 1.0) -> SpectralPrior:
        """Return the same deviations, times a factor, around another mean."""
        return replace(self, mean=mean, scale=self.scale * factor)

    def image(self, code: Tensor) -> Tensor:
        """Return the images `[…, channels, height, width]` of standardised coefficients of the same shape."""
        components = inverse_cosine_transform(code * self.scale)
        return self.mean + torch.einsum("kc,...khw->...chw", self.colours, components)

    def code(self, images: Tensor) -> Tensor:
        """Return the standardised coefficients of images; the inverse of `image`."""
        components = torch.einsum("kc,...chw->...khw", self.colours, images - self.mean)
        return cosine_transform(components) / self.scale

    def to(self, device: torch.device | str) -> SpectralPrior:
        """Return a copy on a device."""
        return SpectralPrior(self.mean.to(device), self.colours.to(device), self.scale.to(device))

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors by name, for a file."""
        return {f"{prefix}.mean": self.mean, f"{prefix}.colours": self.colours, f"{prefix}.scale": self.scale}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str) -> SpectralPrior:
        """Return what `tensors` named."""
        return cls(*(tensors[f"{prefix}.{name}"].float() for name in ("mean", "colours", "scale")))


@cache
def cosine_matrix(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the orthonormal discrete cosine transform (type II) as a matrix `[frequencies, places]`."""
    places = torch.arange(size, device=device, dtype=dtype)
    matrix = torch.cos(math.pi / size * (places + 0.5) * places[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


def cosine_transform(images: Tensor) -> Tensor:
    """Return the two-dimensional cosine transform of `[…, height, width]`."""
    rows, columns = (cosine_matrix(size, images.device, images.dtype) for size in images.shape[-2:])
    return rows @ images @ columns.T


def inverse_cosine_transform(spectrum: Tensor) -> Tensor:
    """Return the images whose cosine transform is given."""
    rows, columns = (cosine_matrix(size, spectrum.device, spectrum.dtype) for size in spectrum.shape[-2:])
    return rows.T @ spectrum @ columns
