"""The settings of image inverters and of their training, each declared once; this module must not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from gradleak.settings import check_settings, setting, settings_of

MOST_IMAGES = 4
MOST_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class ImageInverterSettings:
    """How LTI's networks for images are built and trained; the paper's values (section 4.1) are noted beside each."""

    images: int = setting(1, "images in a client's batch", unit="images", least=1, most=MOST_IMAGES, paper="1")
    hidden: tuple[int, ...] = setting(
        (3000, 3000), "widths of the hidden layers; empty to start from the mean image", least=1, paper="3000,3000"
    )
    dropout: float = setting(0.1, "share of hidden units that training drops", least=0, most=0.9, paper="0")
    lr: float = setting(5e-4, "largest learning rate of Adam", above=0, paper="1e-4, 1e-5 after 150 epochs")
    batch: int = setting(1_024, "clients in a step of the optimiser", unit="clients", least=1, paper="256")
    epochs: int = setting(200, "passes over the auxiliary images", unit="epochs", least=0, paper="200")
    shift: int = setting(2, "most pixels that auxiliary images are moved by", unit="pixels", least=0, paper="0")
    rounds: int = setting(
        2,
        "rounds of gradient matching from the answer, and correction by a refiner",
        least=0,
        most=MOST_ROUNDS,
        paper="0",
    )
    held_back: float = setting(
        0.4,
        "share of the auxiliary images that the inverter does not learn from, so that refiners see its true errors",
        least=0,
        most=0.9,
        paper="0",
    )
    width: int = setting(64, "channels of the refiners", unit="channels", least=8, paper="no refiner")
    refiner_epochs: int = setting(
        30, "passes of each refiner over the held-back images and their copies", unit="epochs", least=1
    )
    refiner_batch: int = setting(256, "images in a step of a refiner's training", unit="images", least=1)
    refiner_lr: float = setting(1e-3, "largest learning rate of a refiner", above=0)
    copies: int = setting(2, "mirrored and shifted copies of each held-back image", unit="copies", least=1)
    steps: int = setting(150, "steps of gradient matching in a round", unit="steps", least=1)
    seed: int = setting(0, "seed of everything random")

    def __post_init__(self) -> None:
        check_settings(self)
        for width in self.hidden:
            settings_of(ImageInverterSettings)["hidden"].check(width)
