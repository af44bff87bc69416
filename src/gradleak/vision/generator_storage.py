"""Files of generators: safetensors in half precision."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from gradleak.assets import image_asset
from gradleak.bounds import MOST_UNITS, whole_number
from gradleak.errors import GradleakError
from gradleak.files import refused_as
from gradleak.inverters.storage import write_tensors
from gradleak.vision.generator import Generator
from gradleak.vision.target import ImageTarget

FORMAT = "gradleak-generator"
SHIPPED = "cifar10"
SIZE = 32


def save_generator(generator: Generator, path: Path, description: str) -> None:
    """Write a generator as safetensors in half precision."""
    metadata = {
        "format": FORMAT,
        "schema": "1",
        "width": str(generator.width),
        "latent": str(generator.latent),
        "description": description,
    }
    write_tensors(path, {name: tensor.half() for name, tensor in generator.state_dict().items()}, metadata)


def load_generator(name: str, target: ImageTarget) -> tuple[Generator, tuple[str, ...]]:
    """Return a generator on the target's device, and a note on its training.

    Args:
        name: `cifar10` for the one that ships, or a file.
        target: the model whose images it draws.

    Raises:
        GradleakError: if there is no such file, it holds no generator, or it draws images of another size.
    """
    path = image_asset(f"{SHIPPED}-generator.safetensors") if name == SHIPPED else Path(name)
    if not path.is_file():
        raise GradleakError(f"there is no generator in '{path}'; train one with gradleak images train-generator")
    with refused_as(f"{path} is damaged", SafetensorError):
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118 - not a mapping
        if metadata.get("format") != FORMAT:
            raise GradleakError(f"{path} holds no generator of gradleak")
        with torch.device("meta"):  # without memory: the file may speak of any width
            generator = Generator(*(whole_number(metadata[name], 1, MOST_UNITS) for name in ("width", "latent")))
        generator.load_state_dict(tensors, assign=True)
    if target.size != SIZE:
        raise GradleakError(
            f"the generator draws images of {SIZE} × {SIZE} pixels, and {target.name} has {target.size}"
        )
    note = metadata.get("description", "")
    return generator.to(target.device).requires_grad_(False).eval(), ((f"generator: {note}",) if note else ())
