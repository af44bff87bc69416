"""A picture of a result: true images above reconstructions, the PSNR below each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.vision.data import pillow

if TYPE_CHECKING:
    from PIL.Image import Image

SCALE, GAP, CAPTION, PER_LINE = 3, 4, 14, 16
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def comparison(truth: Tensor, rows: Sequence[Tensor], captions: Sequence[Sequence[str]]) -> Image:
    """Return a picture: a row of true images, and below it each row of reconstructions with its captions.

    Args:
        truth: between 0 and 1 `[images, 3, height, width]`.
        rows: of the same shape each.
        captions: a text for each reconstruction of each row; empty texts leave no space where all are empty.
    """
    module = pillow()
    from PIL import ImageDraw

    height, width = (SCALE * size + GAP for size in truth.shape[-2:])
    line = height + sum(height + _caption(texts) for texts in captions) + 2 * GAP
    columns = min(PER_LINE, len(truth))
    lines = -(-len(truth) // columns)
    sheet: Image = module.new("RGB", (columns * width + GAP, lines * line + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number in range(len(truth)):
        left, top = GAP + number % columns * width, GAP + number // columns * line
        sheet.paste(_tile(module, truth[number]), (left, top))
        for row, texts in zip(rows, captions, strict=True):
            top += height
            sheet.paste(_tile(module, row[number]), (left, top))
            if _caption(texts):
                draw.text((left, top + height - GAP + 1), texts[number], fill="black")
                top += CAPTION
    return sheet


def save_picture(picture: Image, path: Path) -> None:
    """Write a picture in the format of its suffix.

    Raises:
        GradleakError: if it cannot be written.
    """
    try:
        picture.save(path)
    except (OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be written: {error}") from None


def _caption(texts: Sequence[str]) -> int:
    return CAPTION if any(texts) else 0


def _tile(module: Any, image: Tensor) -> Image:  # noqa: ANN401 - Pillow's module
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    height, width = pixels.shape[:2]
    tile: Image = module.fromarray(pixels).resize((SCALE * width, SCALE * height), 0)
    return tile
