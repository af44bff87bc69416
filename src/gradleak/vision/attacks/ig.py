"""Inverting Gradients: signed Adam on cosine distance and total variation, for all clients in one descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.settings import setting
from gradleak.vision.attacks.base import ImageAttack, Search, register_image_attack
from gradleak.vision.smoothness import total_variation

DROPS = (3 / 8, 5 / 8, 7 / 8)  # of the descent, after which the learning rate falls to a tenth


@register_image_attack
@dataclass(frozen=True, kw_only=True)
class Ig(ImageAttack):
    """Inverting Gradients (Geiping et al. 2020): images whose gradient points where the observed one does.

    Under sign compression and pruning the distance is the one of LTI's appendix A.1.
    """

    name: ClassVar[str] = "ig"
    paper: ClassVar[str] = "Inverting Gradients – How easy is it to break privacy in federated learning?"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "fast": {"steps": 600}}

    steps: int = setting(4_800, "steps of the descent", least=1)
    # In units of pixels between 0 and 1; the paper's 0.1 is for images divided by their standard deviation of 0.25.
    lr: float = setting(0.025, "learning rate of Adam", above=0, paper="0.1, for normalised images")
    tv: float = setting(1e-2, "weight of total variation", least=0)

    def run(self, search: Search) -> tuple[Tensor, tuple[str, ...]]:
        """Descend from noise; images of different clients do not influence each other."""
        images = (0.5 + 0.25 * search.normal(*search.shape)).clamp(0, 1).requires_grad_()
        optimizer = torch.optim.Adam([images], lr=self.lr)
        seconds = search.deadline.left
        for step in range(self.steps):
            if search.deadline.passed:
                break
            done = search.share_done(step, self.steps, seconds)
            optimizer.param_groups[0]["lr"] = self.lr * 0.1 ** sum(done >= drop for drop in DROPS)
            distances = search.distances(images)
            loss = distances.sum() + self.tv * total_variation(images).sum()
            (slope,) = torch.autograd.grad(loss, images)
            images.grad = slope.sign()
            optimizer.step()
            with torch.no_grad():
                images.clamp_(0, 1)
            search.tell(step + 1, self.steps, distances)
        return images.detach(), ()
