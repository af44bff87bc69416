"""Readers of images, and of the networks and weights that gradleak reads besides models."""

from __future__ import annotations

import contextlib
import io
import random
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from mutation import mutated, mutated_card, mutated_safetensors
from PIL import Image
from reader import Reader, small
from safetensors.torch import save_file
from torch import nn

from gradleak.exchange import Origin, Update
from gradleak.inverters.card import Card
from gradleak.inverters.features import KeptRows
from gradleak.inverters.network import Inverter
from gradleak.inverters.selection import InverterNeeds, choose_inverter
from gradleak.inverters.storage import save_inverter
from gradleak.vision.data import load_images
from gradleak.vision.generator import Generator
from gradleak.vision.generator_storage import load_generator, save_generator
from gradleak.vision.inverter import GradientInverter, Refiner
from gradleak.vision.inverter_settings import ImageInverterSettings
from gradleak.vision.inverter_storage import choose_image_inverter, save_image_inverter
from gradleak.vision.reading import ImageInverter, Round
from gradleak.vision.spectral_prior import SpectralPrior
from gradleak.vision.target import ImageTarget

SIZE = 8


@cache
def small_images() -> ImageTarget:
    """Return an image classifier of one layer, and keep it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 2)).requires_grad_(False)
    return ImageTarget("one-layer", model, 2, SIZE, 0)


# --- images ----------------------------------------------------------------------------------------------------------


def write_arrays(folder: Path) -> list[bytes]:
    pixels = np.arange(2 * SIZE**2 * 3, dtype=np.uint8).reshape(2, SIZE, SIZE, 3)
    contents = []
    for write in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        write(file, test=pixels, test_labels=np.array([0, 1]))  # type: ignore[operator]
        contents.append(file.getvalue())
    return contents


def mutated_arrays(content: bytes, chance: random.Random) -> bytes:
    """Mutate the bytes of the archive, or an array in it with a check sum that fits."""
    if chance.random() < 0.4:
        return mutated(content, chance)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            array = old.read(name)
            head = mutated(array[:128], chance) if chance.random() < 0.5 else array[:128]
            new.writestr(name, head + array[128:])
    return file.getvalue()


def read_arrays(path: Path) -> None:
    load_images(f"{path}:test").take(slice(0, 2)).check(SIZE, 2)


def write_pictures(folder: Path) -> list[bytes]:
    (folder / "pictures").mkdir(exist_ok=True)
    picture = Image.fromarray(np.arange(SIZE**2 * 3, dtype=np.uint8).reshape(SIZE, SIZE, 3))
    contents = []
    for kind in ("png", "jpeg", "bmp", "webp", "gif", "ppm"):
        file = io.BytesIO()
        with contextlib.suppress(KeyError):  # a build of Pillow may lack one
            picture.save(file, format=kind)
            contents.append(file.getvalue())
    return contents


def read_picture(path: Path) -> None:
    load_images(str(path.parent)).check(SIZE, 2)


# --- networks --------------------------------------------------------------------------------------------------------


def write_image_inverters(folder: Path) -> list[bytes]:
    target = small_images()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images = torch.rand(4, *target.shape)
        settings = ImageInverterSettings(hidden=(4,), width=8, rounds=1)
        entries = sum(parameter.numel() for parameter in target.parameters.values())
        inverter = ImageInverter(
            target.origin,
            settings,
            ("sign",),
            SpectralPrior.fit(images),
            GradientInverter(entries, (1, *target.shape), settings.hidden, target.num_labels),
            (Round(SpectralPrior.of_errors(images - 0.5), Refiner(2, settings.width)),),
            4,
        )
    save_image_inverter(inverter, folder)
    return [(folder / "image-inverter.safetensors").read_bytes()]


def read_image_inverter(path: Path) -> None:
    choose_image_inverter(path.parent, small_images(), 1, ("sign",))


def write_generators(folder: Path) -> list[bytes]:
    save_generator(Generator(1, 2), folder / "generator.safetensors", "small")
    return [(folder / "generator.safetensors").read_bytes()]


def read_generator(path: Path) -> None:
    target = small_images()
    load_generator(str(path), ImageTarget(target.name, target.model, 2, 32, 0))


def write_inverters(folder: Path) -> list[bytes]:
    target = small()
    name = "bert.pooler.dense.weight"
    rows = KeptRows({name: torch.arange(2)}, {name: target.parameters[name].shape[1]})
    card = Card(origin=Origin.of(target), parameters=(name,), tokens=4, shortest=4, hidden=(3,), defenses=("sign",))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_inverter(Inverter(card, rows, target), folder)
    return [(folder / "inverter.safetensors").read_bytes()]


def read_inverter(path: Path) -> None:
    needs = InverterNeeds(sent=tuple(small().parameters), longest=4, defenses=("sign",))
    choose_inverter(str(path.parent), small(), needs)


# --- weights before and after training -------------------------------------------------------------------------------


def write_weights(folder: Path) -> list[bytes]:
    before = {name: tensor.detach() for name, tensor in small().parameters.items()}
    after = {name: tensor + 1e-3 for name, tensor in before.items()}
    save_file(before, folder / "before.safetensors")
    save_file(after, folder / "after.safetensors", metadata={"format": "pt"})
    return [(folder / "after.safetensors").read_bytes()]


def read_weights(path: Path) -> None:
    Update.from_weights(path.with_name("before.safetensors"), path, protocol="steps=1,lr=0.1", target=small())
    Update.from_gradients(path, target=small())


NETWORK_READERS = (
    Reader("image arrays", "images.npz", write_arrays, read_arrays, mutated_arrays),
    Reader("picture", "pictures/one.png", write_pictures, read_picture),
    Reader("image inverter", "image-inverter.safetensors", write_image_inverters, read_image_inverter, mutated_card),
    Reader("generator", "generator.safetensors", write_generators, read_generator, mutated_card),
    Reader("inverter", "inverter.safetensors", write_inverters, read_inverter, mutated_card),
    Reader("weights", "after.safetensors", write_weights, read_weights, mutated_safetensors),
)
