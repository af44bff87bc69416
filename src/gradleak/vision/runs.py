"""Simulated clients under attack: batches of private images, their updates, reconstructions and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge
from gradleak.version import __version__
from gradleak.vision.attacks import ImageAttack, ImageReconstruction
from gradleak.vision.attacks.base import Report
from gradleak.vision.client import ImageClient
from gradleak.vision.data import ImageSet
from gradleak.vision.lpips import Lpips
from gradleak.vision.metrics import best_order, image_scores

TOLD = ("labels", "defense")
"""What the attacker may be told; the batch size is always known."""


def knowledge_of(told: Sequence[str] | None, batch_size: int) -> tuple[str, ...]:
    """Return the names of what the attacker knows, in a fixed order.

    Args:
        told: some of `TOLD`; None for what the papers assume: the defense, and the labels of batches.
        batch_size: images in a batch.
    """
    usual = TOLD if batch_size > 1 else ("defense",)
    return ("batch-size", *(name for name in TOLD if name in (usual if told is None else told)))


@dataclass(frozen=True, eq=False)
class ImageBatchResult:
    """The result of one client.

    Attributes:
        truth: private images `[images, 3, height, width]`.
        labels: their classes.
        found: the reconstruction, whose images are in the order that fits best.
        images: the found images in that order.
        scores: of each image, by name.
    """

    truth: Tensor
    labels: tuple[int, ...]
    found: ImageReconstruction
    images: Tensor
    scores: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ImageRun:
    """A scenario with images: clients, each with a batch of its own, and an attack on all of them side by side.

    Attributes:
        client: makes the updates.
        attack: reads them.
        images: private images.
        labels: their classes.
        batch_size: images in a batch.
        know: what the attacker is told: the batch size, and some of `TOLD`.
        seed: of the attack.
        budget: seconds for each client; None for no limit.
    """

    client: ImageClient
    attack: ImageAttack
    images: ImageSet
    labels: tuple[int, ...]
    batch_size: int = 1
    know: tuple[str, ...] = ("batch-size", "defense")
    seed: int = 0
    budget: float | None = None

    def __post_init__(self) -> None:
        if len(self.images) % self.batch_size:
            raise GradleakError(f"{len(self.images)} images do not fill batches of {self.batch_size}")
        if len(self.labels) != len(self.images):
            raise GradleakError(f"there are {len(self.images)} images and {len(self.labels)} labels")

    def run(self, report: Report | None = None, distance: Lpips | None = None) -> list[ImageBatchResult]:
        """Attack all clients and score what was found."""
        truths = torch.split(self.images.pixels.float() / 255, self.batch_size)
        labels = [self.labels[n : n + self.batch_size] for n in range(0, len(self.labels), self.batch_size)]
        updates = [self.client.update(truth, own) for truth, own in zip(truths, labels, strict=True)]
        knowledge = [self._knowledge(own) for own in labels]
        target = self.client.target
        found = self.attack.many(target, updates, knowledge, seed=self.seed, budget=self.budget, report=report)
        results = []
        for truth, own, one in zip(truths, labels, found, strict=True):
            images = best_order(one.images, truth)
            results.append(ImageBatchResult(truth, own, one, images, _scores(images, truth, distance)))
        return results

    def _knowledge(self, labels: tuple[int, ...]) -> Knowledge:
        whole = Knowledge(labels=labels, batch_size=self.batch_size, defenses=tuple(map(str, self.client.defenses)))
        return whole.only(self.know)


def mean_image_scores(results: Sequence[ImageBatchResult]) -> dict[str, float]:
    """Return the scores averaged over images, and the seconds in all."""
    names = results[0].scores if results else {}
    means = {
        name: float(torch.tensor([value for result in results for value in result.scores[name]]).mean())
        for name in names
    }
    return means | {"seconds": sum(result.found.seconds for result in results)}


def run_record(run: ImageRun, results: Sequence[ImageBatchResult], dataset: str) -> dict[str, Any]:
    """Return everything about a run for JSON: the schema of `gradleak attack`, with images in place of texts.

    Args:
        run: the run.
        results: of its clients; none if it was interrupted, because all are attacked side by side.
        dataset: where the images are from.
    """
    target = run.client.target
    return {
        "schema": 1,
        "attack": run.attack.name,
        "model": target.name,
        "scenario": {
            "task": target.task,
            "dataset": dataset,
            "batch_size": run.batch_size,
            "defenses": list(map(str, run.client.defenses)),
            "know": list(run.know),
            "model_seed": target.seed,
            "send": run.client.wire,
        },
        "seed": run.seed,
        "batches": [_batch_record(result) for result in results],
        "summary": mean_image_scores(results),
        "settings": asdict(run.attack),
        "model_hash": target.fingerprint,
        "version": __version__,
    } | ({} if results else {"interrupted": True})


def _batch_record(result: ImageBatchResult) -> dict[str, Any]:
    return {
        "reference": list(result.labels),
        "labels": list(result.found.labels),
        "scores": {name: list(values) for name, values in result.scores.items()},
        "loss": result.found.loss,
        "seconds": result.found.seconds,
        "notes": list(result.found.notes),
    }


def _scores(images: Tensor, truth: Tensor, distance: Lpips | None) -> dict[str, list[float]]:
    scores = image_scores(images, truth)
    return scores if distance is None else scores | {"lpips": distance(images, truth).tolist()}
