"""The options of `gradleak images`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from gradleak.bounds import LARGEST_IMAGE, LARGEST_SEED, LARGEST_WHOLE, MOST_CLASSES
from gradleak.cli.options.parse import parse_device, parse_whole_numbers
from gradleak.cli.options.shared import MODEL, OUTPUT, DefenseTexts, Device, SendName
from gradleak.errors import GradleakError, unknown_name
from gradleak.settings import settings_of

if TYPE_CHECKING:
    from gradleak.defenses import Defense
    from gradleak.exchange import WireFormat
    from gradleak.vision.auxiliary import AuxiliaryImages
    from gradleak.vision.data import ImageSet
    from gradleak.vision.inverter_settings import ImageInverterSettings
    from gradleak.vision.target import ImageTarget

PRIVATE = "Private images"
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        metavar="FILE.png",
        help="Draw originals above reconstructions, with the PSNR below each.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True)
class PrivateImages:
    """The options on the private images."""

    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FOLDER|FILE.npz:SPLIT",
            help="cifar10-sample, a split of torchvision's (cifar10:test), or a folder whose subfolders are classes.",
            rich_help_panel=PRIVATE,
        ),
    ] = "cifar10-sample"
    take: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Which images.", show_default="all", rich_help_panel=PRIVATE),
    ] = None
    batch_size: Annotated[
        int, typer.Option(min=1, max=LARGEST_WHOLE, metavar="B", help="Images per client.", rich_help_panel=PRIVATE)
    ] = 1
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,…",
            help="Classes of the images, in place of the dataset's.",
            show_default=False,
            rich_help_panel=PRIVATE,
        ),
    ] = None

    def read(self, target: ImageTarget) -> tuple[ImageSet, tuple[int, ...]]:
        """Return the images that are taken, and their classes."""
        from gradleak.data import parse_take
        from gradleak.vision.data import check_labels, load_images

        images = load_images(self.dataset).take(slice(None) if self.take is None else parse_take(self.take))
        images.check(target.size, target.num_labels)
        given = parse_whole_numbers(self.labels, "--labels")
        if given is None and images.labels is None:
            raise GradleakError(f"{self.dataset} names no classes: put images into a folder for each, or give --labels")
        labels = given if given is not None else tuple(images.labels.tolist())  # type: ignore[union-attr]
        check_labels(labels, target.num_labels)
        return images, labels


@dataclass(frozen=True)
class ImageModelChoice:
    """The options on the model and the client."""

    model: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="lenet, resnet20, or a model of torchvision (random weights).", rich_help_panel=MODEL
        ),
    ] = "lenet"
    num_labels: Annotated[
        int, typer.Option(min=2, max=MOST_CLASSES, metavar="N", help="Classes.", rich_help_panel=MODEL)
    ] = 10
    size: Annotated[
        int,
        typer.Option(min=8, max=LARGEST_IMAGE, metavar="PIXELS", help="Height and width.", rich_help_panel=MODEL),
    ] = 32
    model_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LARGEST_SEED,
            metavar="N",
            help="Seed of the weights.",
            show_default="1234 for lenet, as in the paper; else 0",
            rich_help_panel=MODEL,
        ),
    ] = None
    device: Device = "auto"
    defense: DefenseTexts = None
    send: SendName = "fp32"

    def load(self) -> ImageTarget:
        """Return the model on its device."""
        from gradleak.vision.sample_gradients import use_full_precision
        from gradleak.vision.target import load_image_target

        use_full_precision()
        return load_image_target(
            self.model,
            num_labels=self.num_labels,
            size=self.size,
            seed=self.model_seed,
            device=device_of(self.device),
        )

    @property
    def wire(self) -> WireFormat:
        """The number format in which clients send."""
        from gradleak.exchange import WireFormat as Formats

        if self.send not in get_args(Formats):
            raise unknown_name("number format to send", self.send, get_args(Formats))
        return cast("WireFormat", self.send)

    def defenses(self) -> list[Defense]:
        """Return the client's defenses, in order."""
        from gradleak.defenses import parse_defense

        return [parse_defense(text) for text in self.defense or ()]


def device_of(text: str) -> str:
    """Return the device that an option names: for auto a GPU if there is one."""
    import torch

    name = parse_device(text)
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def auxiliary_images(name: str, count: int | None, size: int, num_labels: int | None) -> AuxiliaryImages:
    """Return the attacker's own images, the first `count` of a dataset."""
    import torch

    from gradleak.vision.auxiliary import AuxiliaryImages
    from gradleak.vision.data import load_images

    images = load_images(name).take(slice(0, count))
    labels = torch.zeros(len(images), dtype=torch.long) if images.labels is None else images.labels
    if num_labels is not None and images.labels is None:
        labels = torch.arange(len(images)) % num_labels  # any label teaches how its gradient looks
    images.check(size, num_labels or int(labels.max()) + 1)
    return AuxiliaryImages(images.pixels, labels)


def inverter_settings(texts: dict[str, str], seed: int) -> ImageInverterSettings:
    """Return the settings of a training from `--set KEY=VALUE`."""
    from gradleak.vision.inverter_settings import ImageInverterSettings

    known, chosen = settings_of(ImageInverterSettings), dict[str, Any]()
    for key, text in texts.items():
        if key not in known or key == "seed":
            raise unknown_name("setting of image inverters", key, [name for name in known if name != "seed"])
        if key == "hidden":
            chosen[key] = () if text == "none" else parse_whole_numbers(text, "--set hidden")
        else:
            chosen[key] = known[key].parse(text)
    return ImageInverterSettings(**chosen, seed=seed)
