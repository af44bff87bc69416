"""GI-GIP: gradient matching over a generator's latent codes, then over its weights, for each client its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.settings import setting
from gradleak.vision.attacks.base import ImageAttack, Search, register_image_attack
from gradleak.vision.generator import Generator
from gradleak.vision.generator_storage import load_generator
from gradleak.vision.smoothness import total_variation


@register_image_attack
@dataclass(frozen=True, kw_only=True)
class GiGip(ImageAttack):
    """Gradient Inversion with Generative Image Prior (Jeon et al. 2021).

    First the latent code whose image matches best, then the generator's weights, too: the code keeps the search among
    plausible images, the weights reach those that the generator cannot draw.
    """

    name: ClassVar[str] = "gi-gip"
    paper: ClassVar[str] = "Gradient Inversion with Generative Image Prior"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "fast": {"steps": 200, "weight_steps": 300, "starts": 2},
    }

    generator: str = setting("generator.safetensors", "file of a generator (gradleak images train-generator -o FILE)")
    starts: int = setting(4, "codes from which the search starts; the best is kept", least=1)
    steps: int = setting(500, "steps over the code", least=1)
    lr: float = setting(0.05, "learning rate of the code", above=0)
    weight_steps: int = setting(2_000, "steps over code and weights", least=0)
    weight_lr: float = setting(1e-3, "learning rate of the weights", above=0)
    tv: float = setting(1e-4, "weight of total variation", least=0)
    norm: float = setting(1e-4, "weight of the code's mean square", least=0)

    def run(self, search: Search) -> tuple[Tensor, tuple[str, ...]]:
        """Search codes, keep each client's best, then search weights."""
        generator, note = load_generator(self.generator, search.target)
        codes = self._codes(search, generator)
        weights = generator.own_weights(len(codes))
        leaves = [codes.requires_grad_(), *(weight.requires_grad_() for weight in weights.values())]
        rates = [{"params": leaves[:1], "lr": 0.2 * self.lr}, {"params": leaves[1:], "lr": self.weight_lr}]
        self._descend(search, torch.optim.Adam(rates, foreach=True), leaves, generator, weights)
        with torch.no_grad():
            return generator(codes, weights).view(search.shape), note

    def _codes(self, search: Search, generator: Generator) -> Tensor:
        """Return the best code of each image `[clients · images, latent]`, of several starts."""
        count = search.shape[0] * search.shape[1]
        best_codes, best = torch.zeros(0), torch.full((search.shape[0],), math.inf, device=search.target.device)
        for _ in range(self.starts):
            codes = search.normal(count, generator.latent).requires_grad_()
            self._descend(search, torch.optim.Adam([codes], lr=self.lr), [codes], generator, None)
            with torch.no_grad():
                distances = search.distances(generator(codes).view(search.shape))
                better = (distances < best).repeat_interleave(search.shape[1])
                kept = best_codes.to(codes) if len(best_codes) else codes
                best_codes, best = torch.where(better[:, None], codes, kept), torch.minimum(distances, best)
        return best_codes.detach().clone()

    def _descend(
        self,
        search: Search,
        optimizer: torch.optim.Optimizer,
        leaves: list[Tensor],
        generator: Generator,
        weights: dict[str, Tensor] | None,
    ) -> None:
        steps = self.steps if weights is None else self.weight_steps
        # Of a limited time the codes get a quarter, in equal parts for their starts.
        share = 1.0 if weights is not None else 0.25 / self.starts
        seconds = max(search.deadline.left * share, 1e-3)
        deadline = search.deadline.sooner(seconds) if search.deadline.limited else search.deadline
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(steps):
            done = max(step / steps, 1 - deadline.left / seconds if deadline.limited else 0.0)
            if done >= 1 or deadline.passed:
                break
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * done))
            images = generator(leaves[0], weights).view(search.shape)
            distances = search.distances(images)
            loss = (
                distances.sum()
                + self.tv * total_variation(images).sum()
                + self.norm * leaves[0].square().mean(dim=1).sum()
            )
            for leaf, slope in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
                leaf.grad = slope
            optimizer.step()
            search.tell(step + 1, steps, distances)
