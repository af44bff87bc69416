"""Files of image inverters: safetensors in half precision, with the card as metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Origin
from gradleak.files import check_ordinary, refused_as
from gradleak.inverters.storage import write_tensors
from gradleak.settings import settings_of
from gradleak.vision.inverter import GradientInverter, Refiner
from gradleak.vision.inverter_settings import MOST_ROUNDS, ImageInverterSettings
from gradleak.vision.reading import ImageInverter, Round
from gradleak.vision.spectral_prior import SpectralPrior
from gradleak.vision.target import ImageTarget

FILE = "image-inverter.safetensors"
FORMAT = "gradleak-image-inverter"


def save_image_inverter(inverter: ImageInverter, folder: str | Path) -> None:
    """Write an inverter into a folder: networks in half precision, all else in full."""
    tensors = inverter.prior.tensors("prior")
    if inverter.direct is not None:
        tensors |= {f"direct.{name}": _halved(name, t) for name, t in inverter.direct.state_dict().items()}
    for number, one in enumerate(inverter.rounds):
        tensors |= one.errors.tensors(f"errors{number}")
        tensors |= {f"refiner{number}.{name}": t.half() for name, t in one.refiner.state_dict().items()}
    card = {
        "origin": asdict(inverter.origin),
        "settings": asdict(inverter.settings),
        "defenses": inverter.defenses,
        "rounds": len(inverter.rounds),
        "examples": inverter.examples,
    }
    metadata = {"format": FORMAT, "schema": "1", "card": json.dumps(card)}
    write_tensors(Path(folder) / FILE, {name: t.cpu() for name, t in tensors.items()}, metadata)


def load_image_inverter(folder: str | Path, target: ImageTarget) -> ImageInverter:
    """Read the inverter of a folder onto the target's device.

    Raises:
        GradleakError: if it was trained for other weights, or the file is damaged.
    """
    path = Path(folder) / FILE
    card = _read_card(path)
    if card.origin.fingerprint != target.fingerprint:
        raise GradleakError(
            f"the inverter in {folder} was trained for other weights ({card.origin.name}, seed "
            f"{card.origin.seed}, {card.origin.fingerprint[:12]}) than those of {target.name}, seed "
            f"{target.seed} ({target.fingerprint[:12]})"
        )
    with refused_as(f"{path} is damaged", SafetensorError):
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return _rebuild(card, tensors, target)


def image_inverters_in(folder: str | Path) -> Iterator[Path]:
    """Yield the folders that hold an inverter: this one, and those in it."""
    for path in [Path(folder), *sorted(p for p in Path(folder).glob("*") if p.is_dir())]:
        if (path / FILE).is_file():
            yield path


def choose_image_inverter(
    folder: str | Path, target: ImageTarget, images: int, defenses: tuple[str, ...] | None
) -> ImageInverter:
    """Return the inverter of a folder for a target, a batch size and the known defenses.

    Raises:
        GradleakError: if there is none, or none was trained under these defenses: it would answer nonsense.
    """
    paths = list(image_inverters_in(folder))
    if not paths:
        raise GradleakError(
            f"there is no image inverter in '{folder}'; train one with gradleak images train-inverter and give its "
            "folder with --set inverter=DIR"
        )
    cards = {path: _read_card(path / FILE) for path in paths}
    fitting = [path for path, card in cards.items() if card.origin.fingerprint == target.fingerprint]
    if not fitting:
        load_image_inverter(paths[0], target)  # raises an error that names both targets
    wanted = [path for path in fitting if cards[path].settings.images == images]
    if not wanted:
        found = cards[fitting[0]].settings.images
        raise GradleakError(f"no inverter in '{folder}' is for batches of {images} images; the first is for {found}")
    if defenses is None:
        return load_image_inverter(wanted[0], target)
    for path in wanted:
        if cards[path].defenses == defenses:
            return load_image_inverter(path, target)
    trained = "; ".join(" + ".join(cards[path].defenses) or "none" for path in wanted)
    raise GradleakError(
        f"no inverter in '{folder}' was trained under {' + '.join(defenses) or 'no defense'}; there is: {trained}"
    )


@dataclass(frozen=True)
class ImageCard:
    """What an image inverter is for, and how it was trained: the JSON text in its file.

    Attributes:
        origin: the target.
        settings: of networks and training.
        defenses: the clients', as written on the command line.
        rounds: of matching and correction.
        examples: number of auxiliary images.
    """

    origin: Origin
    settings: ImageInverterSettings
    defenses: tuple[str, ...]
    rounds: int
    examples: int

    @classmethod
    def from_json(cls, text: str) -> ImageCard:
        """Read a card; raises a ValueError, or what Python raises where the JSON is of another kind."""
        card = json.loads(text)
        values = dict(card["settings"]) | {"hidden": tuple(card["settings"]["hidden"])}
        declared = {name: one for name, one in settings_of(ImageInverterSettings).items() if name != "hidden"}
        wrong = [name for name, one in declared.items() if not one.fits(values[name])]
        wrong += [] if all(type(width) is int for width in values["hidden"]) else ["hidden"]
        origin, rounds, examples = Origin(**card["origin"]), card["rounds"], card["examples"]
        wrong += [name for name in ("name", "fingerprint") if not isinstance(getattr(origin, name), str)]
        wrong += [] if type(rounds) is int and 0 <= rounds <= MOST_ROUNDS else ["rounds"]
        wrong += [] if type(examples) is int else ["examples"]
        wrong += [] if all(isinstance(defense, str) for defense in card["defenses"]) else ["defenses"]
        if wrong:
            raise ValueError(f"{wrong[0]} of its card makes no sense")
        return cls(origin, ImageInverterSettings(**values), tuple(card["defenses"]), rounds, examples)


def _read_card(path: Path) -> ImageCard:
    check_ordinary(path)
    with refused_as(f"{path} is damaged", SafetensorError):
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise GradleakError(f"{path} holds no image inverter")
        return ImageCard.from_json(metadata["card"])


def _halved(name: str, tensor: Tensor) -> Tensor:
    return tensor.half() if name.startswith("layers.") else tensor


def _rebuild(card: ImageCard, tensors: Mapping[str, Tensor], target: ImageTarget) -> ImageInverter:
    settings, direct, rounds = card.settings, None, []
    # Networks are built without memory and take the tensors of the file: a card may speak of layers of any size.
    if any(name.startswith("direct.") for name in tensors):
        shape = (settings.images, *tensors["prior.mean"].shape)
        with torch.device("meta"):
            direct = GradientInverter(len(tensors["direct.mean"]), shape, settings.hidden, target.num_labels)
        direct.load_state_dict(_part(tensors, "direct."), assign=True)
        direct.to(target.device).eval().requires_grad_(False)
    for number in range(card.rounds):
        with torch.device("meta"):
            refiner = Refiner(2, settings.width)
        refiner.load_state_dict(_part(tensors, f"refiner{number}."), assign=True)
        refiner.to(target.device).eval().requires_grad_(False)
        errors = SpectralPrior.from_tensors(tensors, f"errors{number}").to(target.device)
        rounds.append(Round(errors, refiner))
    prior = SpectralPrior.from_tensors(tensors, "prior").to(target.device)
    for one in (prior, *(each.errors for each in rounds)):
        if one.mean.shape != target.shape or one.scale.shape != target.shape or len(one.colours) != len(one.mean):
            raise ValueError("it is not for images of the model's size")
    return ImageInverter(card.origin, settings, card.defenses, prior, direct, tuple(rounds), card.examples)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t.float() for name, t in tensors.items() if name.startswith(prefix)}
