"""Files of image inverters: safetensors in half precision, with the card as metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Origin
from gradleak.inverters.storage import write_tensors
from gradleak.vision.inverter import GradientInverter, Refiner
from gradleak.vision.inverter_settings import ImageInverterSettings
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
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format") != FORMAT:
            raise GradleakError(f"{path} holds no image inverter")
        inverter = _rebuild(json.loads(metadata["card"]), tensors, target)
    except GradleakError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise GradleakError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None
    if inverter.origin.fingerprint != target.fingerprint:
        raise GradleakError(
            f"the inverter in {folder} was trained for other weights ({inverter.origin.name}, seed "
            f"{inverter.origin.seed}, {inverter.origin.fingerprint[:12]}) than those of {target.name}, seed "
            f"{target.seed} ({target.fingerprint[:12]})"
        )
    return inverter


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
    inverters = {path: _card(path) for path in paths}
    fitting = [p for p, card in inverters.items() if card["origin"]["fingerprint"] == target.fingerprint]
    if not fitting:
        load_image_inverter(paths[0], target)  # raises an error that names both targets
    wanted = [p for p in fitting if inverters[p]["settings"]["images"] == images]
    if not wanted:
        found = inverters[fitting[0]]["settings"]["images"]
        raise GradleakError(f"no inverter in '{folder}' is for batches of {images} images; the first is for {found}")
    if defenses is None:
        return load_image_inverter(wanted[0], target)
    for path in wanted:
        if tuple(inverters[path]["defenses"]) == defenses:
            return load_image_inverter(path, target)
    trained = "; ".join(" + ".join(inverters[path]["defenses"]) or "none" for path in wanted)
    raise GradleakError(
        f"no inverter in '{folder}' was trained under {' + '.join(defenses) or 'no defense'}; there is: {trained}"
    )


def _card(folder: Path) -> dict[str, Any]:
    try:
        with safe_open(str(folder / FILE), framework="pt") as file:
            card: dict[str, Any] = json.loads((file.metadata() or {})["card"])
            return card
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise GradleakError(f"{folder / FILE} is damaged: {' '.join(str(error).split())[:200]}") from None


def _halved(name: str, tensor: Tensor) -> Tensor:
    return tensor.half() if name.startswith("layers.") else tensor


def _rebuild(card: dict[str, Any], tensors: Mapping[str, Tensor], target: ImageTarget) -> ImageInverter:
    values = dict(card["settings"])
    settings = ImageInverterSettings(**values | {"hidden": tuple(values["hidden"])})
    origin = Origin(**card["origin"])
    with torch.random.fork_rng(devices=[]):  # building networks draws weights; the global random state stays
        direct = None
        if any(name.startswith("direct.") for name in tensors):
            prior_shape = tensors["prior.mean"].shape
            shape = (settings.images, *prior_shape)
            direct = GradientInverter(len(tensors["direct.mean"]), shape, settings.hidden, target.num_labels)
            direct.load_state_dict(_part(tensors, "direct."))
            direct.to(target.device).eval().requires_grad_(False)
        rounds = []
        for number in range(card["rounds"]):
            refiner = Refiner(2, settings.width)
            refiner.load_state_dict(_part(tensors, f"refiner{number}."))
            refiner.to(target.device).eval().requires_grad_(False)
            errors = SpectralPrior.from_tensors(tensors, f"errors{number}").to(target.device)
            rounds.append(Round(errors, refiner))
    prior = SpectralPrior.from_tensors(tensors, "prior").to(target.device)
    defenses = tuple(card["defenses"])
    return ImageInverter(origin, settings, defenses, prior, direct, tuple(rounds), card["examples"])


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t.float() for name, t in tensors.items() if name.startswith(prefix)}
