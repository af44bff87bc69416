"""Attack the images of a cell: all of its clients side by side, and the scores of every image."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Listener, Progress
from gradleak.studies.definition.cells import ImageCell
from gradleak.studies.records.outcome import ImageRecord
from gradleak.vision.attacks.base import Report
from gradleak.vision.client import ImageClient
from gradleak.vision.data import ImageSet
from gradleak.vision.lpips import Lpips, find_lpips_weights
from gradleak.vision.runs import ImageBatchResult, ImageRun
from gradleak.vision.sample_gradients import use_full_precision
from gradleak.vision.target import ImageTarget


def attack_images(
    cell: ImageCell, target: ImageTarget, images: ImageSet, listener: Listener | None
) -> tuple[ImageRecord, ...]:
    """Return a record of every image of a cell, without LPIPS where its weights are missing.

    Raises:
        GradleakError: if images, labels or attack do not fit the model.
    """
    use_full_precision()
    images.check(target.size, target.num_labels)
    if images.labels is None:
        raise GradleakError(f"{images.name} names no classes: put its images into a folder for each")
    weights = find_lpips_weights()
    run = ImageRun(
        client=ImageClient(target, defenses=[parse_defense(text) for text in cell.defenses], seed=cell.seed),
        attack=cell.attack.build(),
        images=images,
        labels=tuple(images.labels.tolist()),
        batch_size=cell.batch_size,
        know=cell.knowledge,
        seed=cell.seed,
        budget=cell.attack.budget,
    )
    found = run.run(_report(listener), None if weights is None else Lpips(weights, target.device))
    return tuple(record for number, result in enumerate(found) for record in _records(number, result))


def _report(listener: Listener | None) -> Report | None:
    """Return what tells a listener of an attack's steps."""
    if listener is None:
        return None
    began = time.perf_counter()

    def tell(step: int, total: int, loss: float) -> None:
        listener(Progress(step, total, loss, (), time.perf_counter() - began))

    return tell


def _records(number: int, result: ImageBatchResult) -> Iterator[ImageRecord]:
    scores, loss = result.scores, result.found.loss
    for place, label in enumerate(result.labels):
        yield ImageRecord(
            batch=number,
            position=place,
            label=label,
            read=result.found.labels[place],
            mse=scores["mse"][place],
            psnr=scores["psnr"][place],
            ssim=scores["ssim"][place] if "ssim" in scores else None,
            lpips=scores["lpips"][place] if "lpips" in scores else None,
            loss=loss if math.isfinite(loss) else None,
        )
