"""A small image target and smooth private images, for tests of seconds."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.defenses import defend_each, parse_defense
from gradleak.exchange import Deadline
from gradleak.vision.attacks.base import Search
from gradleak.vision.auxiliary import AuxiliaryImages
from gradleak.vision.observation import Observation, observe
from gradleak.vision.target import ImageTarget, load_image_target

SIZE = 16


def small_target() -> ImageTarget:
    return load_image_target("lenet", size=SIZE, num_labels=4, seed=1)


def smooth_images(count: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=stream)
    return torch.nn.functional.interpolate(coarse, size=SIZE, mode="bilinear", align_corners=False)


def auxiliary(count: int) -> AuxiliaryImages:
    return AuxiliaryImages((smooth_images(count, 1) * 255).byte(), torch.arange(count) % 4)


def private(target: ImageTarget, count: int, *defenses: str) -> tuple[Tensor, Tensor, Observation]:
    images, labels = smooth_images(count)[:, None], (torch.arange(count) % 4)[:, None]
    chosen = [parse_defense(text) for text in defenses]
    sent = defend_each(target.gradients(images, labels), chosen, torch.Generator().manual_seed(0))
    return images, labels, observe(target, sent, None, defenses)


def search_of(target: ImageTarget, seen: Observation) -> Search:
    return Search(target, seen, seen.labels.shape[1], torch.Generator().manual_seed(0), Deadline())
