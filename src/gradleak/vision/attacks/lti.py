"""Learning to Invert for images: a trained network reads the gradient; rounds of gradient matching correct it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.settings import setting
from gradleak.vision.attacks.base import ImageAttack, Search, register_image_attack
from gradleak.vision.inverter_storage import choose_image_inverter

CLIENTS_PER_PASS = 1_024


@register_image_attack
@dataclass(frozen=True, kw_only=True)
class ImageLti(ImageAttack):
    """Learning to Invert (section 4.1), with an inverter that was trained under the clients' defense.

    The paper's answer is the network's. `best` then searches near it for images whose gradient fits what was sent, as
    likely ones as possible by the errors that such answers had in training, and lets a small U-Net correct the result.
    """

    name: ClassVar[str] = "lti"
    paper: ClassVar[str] = "Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in Federated Learning"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"best": {}, "paper": {"rounds": 0}}

    inverter: str = setting("inverters", "folder of an inverter, or of several (gradleak images train-inverter -o DIR)")
    rounds: int | None = setting(None, "rounds of matching and correction; none for all that were trained", least=0)

    def run(self, search: Search) -> tuple[Tensor, tuple[str, ...]]:
        """Read the gradients, all with the inverter that fits them."""
        inverter = choose_image_inverter(self.inverter, search.target, search.images, search.defenses)
        found = []
        for start in range(0, search.seen.count, CLIENTS_PER_PASS):
            part = search.seen.select(slice(start, start + CLIENTS_PER_PASS))
            found.append(inverter.read(search.target, part, self.rounds, search.deadline))
        trained = " + ".join(inverter.defenses) or "no defense"
        return torch.cat(found), (f"inverter: {inverter.examples:,} auxiliary images, trained under {trained}",)
