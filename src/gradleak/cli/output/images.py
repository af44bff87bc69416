"""What `gradleak images attack` prints: progress, scores and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural

if TYPE_CHECKING:
    from gradleak.vision.attacks.base import Report
    from gradleak.vision.runs import ImageBatchResult

TITLES = {"mse": "MSE", "psnr": "PSNR dB", "ssim": "SSIM", "lpips": "LPIPS"}
DIGITS = {"mse": 4, "psnr": 2, "ssim": 3, "lpips": 3}


def progress(screen: Screen, name: str) -> Report:
    """Return a listener that prints a line every tenth of an attack."""

    def tell(step: int, total: int, loss: float) -> None:
        if step % max(1, total // 10) == 0 or step == total:
            screen.line(f"{name}: step {step:,} of {total:,}, loss {loss:.5f}", "dim")

    return tell


def show_result(screen: Screen, results: Sequence[ImageBatchResult], picture: Path | None) -> None:
    """Print the scores of each image and their means, and draw the picture."""
    from gradleak.vision.runs import mean_image_scores

    names = list(results[0].scores)
    rows = [
        [str(number), str(label), str(read), *(_written(name, result.scores[name][place]) for name in names)]
        for number, (result, place, label, read) in enumerate(_images(results))
    ]
    screen.table(["image", "label", "read", *(TITLES[name] for name in names)], rows)
    for note in dict.fromkeys(note for result in results for note in result.found.notes):
        screen.line(note, "dim")
    means = mean_image_scores(results)
    written = "  ".join(f"{TITLES[name]} {_written(name, means[name])}" for name in names)
    screen.result(f"{written}  ({plural(len(rows), 'image')}, {means['seconds']:.1f} s)")
    if picture is not None:
        _draw(results, picture)
        screen.line(f"picture: {picture}")


def _images(results: Sequence[ImageBatchResult]) -> list[tuple[ImageBatchResult, int, int, int]]:
    return [
        (result, place, result.labels[place], result.found.labels[place])
        for result in results
        for place in range(len(result.labels))
    ]


def _written(name: str, value: float) -> str:
    return f"{value:.{DIGITS[name]}f}"


def _draw(results: Sequence[ImageBatchResult], path: Path) -> None:
    import torch

    from gradleak.vision.picture import comparison, save_picture

    truth = torch.cat([result.truth for result in results])
    found = torch.cat([result.images for result in results])
    captions = [f"{value:.1f}" for result in results for value in result.scores["psnr"]]
    save_picture(comparison(truth, [found], [captions]), path)
