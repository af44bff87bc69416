"""The attacker's own images, on the device as bytes, drawn in random batches with mirrored and shifted copies."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it


@dataclass(frozen=True)
class AuxiliaryImages:
    """Images and their classes.

    Attributes:
        pixels: uint8 `[images, channels, height, width]`.
        labels: `[images]`.
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> AuxiliaryImages:
        """Return a copy on a device."""
        return AuxiliaryImages(self.pixels.to(device), self.labels.long().to(device))

    def part(self, rows: slice) -> AuxiliaryImages:
        """Return some of the images."""
        return AuxiliaryImages(self.pixels[rows], self.labels[rows])

    def split(self, share: float) -> tuple[AuxiliaryImages, AuxiliaryImages]:
        """Return the first images, and the last ones, of which there is this share."""
        border = len(self) - int(share * len(self))
        return self.part(slice(0, border)), self.part(slice(border, None))

    def images(self, rows: slice | Tensor | None = None) -> Tensor:
        """Return pixels between 0 and 1."""
        chosen = self.pixels if rows is None else self.pixels[rows]
        return chosen.float() / 255

    def draw(self, count: int, stream: torch.Generator, moved: tuple[int, int] = (0, 0)) -> tuple[Tensor, Tensor]:
        """Draw images with replacement, half of them mirrored.

        Args:
            count: number of images.
            stream: on the images' device.
            moved: pixels down and across by which all of them are moved; the border is filled by reflection.
        """
        device = self.pixels.device
        rows = torch.randint(len(self), (count,), generator=stream, device=device)
        images = self.images(rows)
        mirrored = torch.rand(count, generator=stream, device=device) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        return shifted(images, *moved), self.labels[rows]


def shifted(images: Tensor, down: int, across: int) -> Tensor:
    """Return images moved down and across; the border is filled by reflection."""
    reach = max(abs(down), abs(across))
    if not reach:
        return images
    height, width = images.shape[-2:]
    wide = F.pad(images, (reach,) * 4, mode="reflect")
    return wide[:, :, reach - down : reach - down + height, reach - across : reach - across + width]


class Pace:
    """How far a training is: by its steps, or by the clock if that is faster.

    Args:
        steps: in all.
        seconds: after which it ends in any case; None for no limit.
    """

    def __init__(self, steps: int, seconds: float | None = None) -> None:
        self.steps, self.step, self._seconds, self._began = steps, 0, seconds, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the training began."""
        return time.monotonic() - self._began

    @property
    def done(self) -> float:
        """Share that is done, from 0 to 1; the learning rate follows it."""
        by_clock = 0.0 if self._seconds is None else self.seconds / self._seconds
        return min(1.0, max(self.step / max(1, self.steps), by_clock))

    def __bool__(self) -> bool:
        return self.done < 1
