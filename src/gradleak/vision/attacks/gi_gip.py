"""GI-GIP: gradient matching over a generator's latent codes, then over its weights, for each client its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.settings import setting
from gradleak.vision.attacks.base import ImageAttack, Search, register_image_attack
from gradleak.vision.generator import Generator
from gradleak.vision.generator_storage import load_generator
from gradleak.vision.observation import Channel
from gradleak.vision.smoothness import total_variation

CODES_SHARE = 0.25  # of a limited time, in equal parts for the starts
FEATURE_RATE = 20.0  # learning rate of the generator's first map, in units of that of the weights
BETAS = (0.9, 0.99)
EPSILON = 1e-15  # of Adam: distances close to a match have slopes of 1e-9


@dataclass(frozen=True)
class Manner:
    """How to search under one way of sending: chosen on nine test images, with a small generator trained on a CPU.

    Attributes:
        norm: weight of the code's mean square; large where what was sent tells little.
        rate: learning rate of the weights.
        roughness: weight of total variation at the start and the end of a descent.
        share: of the steps over the weights; more of them fit the noise, or what was not sent.
    """

    norm: float
    rate: float
    roughness: tuple[float, float]
    share: float = 1.0


MANNERS: Mapping[Channel, Manner] = {
    "exact": Manner(1e-4, 3e-2, (1e-5, 1e-7)),
    "noise": Manner(1e-3, 2e-3, (1e-2, 1e-2), 0.02),
    "sign": Manner(1e-3, 1e-2, (1e-2, 1e-2), 0.3),
    "pruned": Manner(1e-2, 1e-3, (1e-2, 1e-2), 0.02),
}


@register_image_attack
@dataclass(frozen=True, kw_only=True)
class GiGip(ImageAttack):
    """Gradient Inversion with Generative Image Prior (Jeon et al. 2021).

    First the latent code whose image matches best, then the generator's weights: the code keeps the search among
    plausible images, the weights reach those that the generator cannot draw. In place of the code and the first layer,
    whose product is all that the others see, the second search has that product itself: the first map of features.
    """

    name: ClassVar[str] = "gi-gip"
    paper: ClassVar[str] = "Gradient Inversion with Generative Image Prior"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "best": {},
        "paper": {"limits": False},
        "fast": {"steps": 100, "weight_steps": 300, "starts": 2},
    }

    generator: str = setting(
        "cifar10", "cifar10 for the one that ships, or a file (gradleak images train-generator -o FILE)"
    )
    starts: int = setting(4, "codes from which the search starts; the best is kept", least=1)
    steps: int = setting(500, "steps over the code", least=1)
    lr: float = setting(0.05, "learning rate of the code", above=0)
    weight_steps: int = setting(3_000, "steps over the weights; a part of them under a defense", least=0)
    weight_lr: float | None = setting(
        None, "learning rate of the weights; none for one that suits the defense", above=0
    )
    tv: float | None = setting(None, "weight of total variation; none for one that suits the defense", least=0)
    norm: float | None = setting(None, "weight of the code's mean square; none for one that suits the defense", least=0)
    limits: bool = setting(
        True, "under pruning, count sizes and the entries that were not sent, too", paper="cosine of those sent alone"
    )

    def run(self, search: Search) -> tuple[Tensor, tuple[str, ...]]:
        """Search codes, keep each client's best, then search weights."""
        generator, note = load_generator(self.generator, search.target)
        codes = self._codes(search, generator)
        with torch.no_grad():
            features = generator.features(codes)
        weights = generator.own_weights(len(codes))
        leaves = [features, *weights.values()]
        manner = MANNERS[search.seen.channel]
        rate = self.weight_lr or manner.rate
        rates = [FEATURE_RATE * rate, *(rate for _ in weights)]
        steps, seconds = math.ceil(manner.share * self.weight_steps), search.deadline.left
        self._descend(search, leaves, rates, steps, seconds, lambda: generator.draw(features, weights))
        with torch.no_grad():
            return generator.draw(features, weights).view(search.shape), note

    def _codes(self, search: Search, generator: Generator) -> Tensor:
        """Return the best code of each image `[clients · images, latent]`, of several starts."""
        count = search.shape[0] * search.shape[1]
        best_codes, best = torch.zeros(0), torch.full((search.shape[0],), math.inf, device=search.target.device)
        seconds = search.deadline.left * CODES_SHARE / self.starts
        norm = MANNERS[search.seen.channel].norm if self.norm is None else self.norm
        for _ in range(self.starts):
            codes = search.normal(count, generator.latent)
            draw = partial(generator, codes)
            self._descend(search, [codes], [self.lr], self.steps, seconds, draw, norm=norm)
            with torch.no_grad():
                distances = self._distances(search, generator(codes).view(search.shape))
                better = (distances < best).repeat_interleave(search.shape[1])
                kept = best_codes.to(codes) if len(best_codes) else codes
                best_codes, best = torch.where(better[:, None], codes, kept), torch.minimum(distances, best)
        return best_codes.detach().clone()

    def _distances(self, search: Search, images: Tensor) -> Tensor:
        told_more = self.limits and search.seen.channel == "pruned"
        return search.excesses(images) if told_more else search.distances(images)

    def _descend(
        self,
        search: Search,
        leaves: Sequence[Tensor],
        rates: Sequence[float],
        steps: int,
        seconds: float,
        draw: Callable[[], Tensor],
        norm: float = 0.0,
    ) -> None:
        """Move leaves, in place, towards images whose gradient matches; all clients at once and independently.

        Args:
            search: the clients.
            leaves: what is searched; the first one is the code where `norm` is given.
            rates: their learning rates, which fall by a cosine.
            steps: at most.
            seconds: that it may take; infinite for no limit.
            draw: returns the images of the leaves.
            norm: weight of the first leaf's mean square.
        """
        for leaf in leaves:
            leaf.requires_grad_()
        groups = [{"params": [leaf], "lr": rate} for leaf, rate in zip(leaves, rates, strict=True)]
        # Fused: the weights of a thousand clients are gigabytes, and every pass over them counts.
        optimizer = torch.optim.Adam(groups, betas=BETAS, eps=EPSILON, fused=True)
        first, last = MANNERS[search.seen.channel].roughness if self.tv is None else (self.tv, self.tv)
        limited = search.deadline.limited
        deadline = search.deadline.sooner(max(seconds, 1e-3)) if limited else search.deadline
        for step in range(steps):
            done = max(step / steps, 1 - deadline.left / seconds if limited else 0.0)
            if done >= 1 or deadline.passed:
                break
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * done))
            images = draw().view(search.shape)
            distances = self._distances(search, images)
            roughness = first * (last / first) ** done if first > 0 else 0.0
            loss = distances.sum() + roughness * total_variation(images).sum()
            if norm:
                loss = loss + norm * leaves[0].square().mean(dim=1).sum()
            for leaf, slope in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
                leaf.grad = slope.contiguous()  # the fused step reads memory in order
            optimizer.step()
            search.tell(step + 1, steps, distances)
        for leaf in leaves:
            leaf.requires_grad_(False).grad = None
