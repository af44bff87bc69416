"""Files of inverters: safetensors that hold the weights, and the card as metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.files import check_ordinary, refused_as, write_atomically
from gradleak.inverters.card import Card
from gradleak.inverters.network import Inverter, build_reduction
from gradleak.targets import Target

FILE = "inverter.safetensors"
FORMAT = "gradleak-inverter"


def save_inverter(inverter: Inverter, folder: str | Path) -> None:
    """Write an inverter and its card into a folder: weights in half precision, all else in full."""
    weights = {f"weight.{name}": parameter.half() for name, parameter in inverter.named_parameters()}
    normalisation = {f"weight.{name}": inverter.state_dict()[name] for name in ("mean", "scale")}
    write_tensors(
        Path(folder) / FILE,
        weights | normalisation | inverter.reduction.tensors(),
        {"format": FORMAT, "schema": "1", "card": inverter.card.as_json()},
    )


def load_inverter(folder: str | Path, target: Target) -> Inverter:
    """Read the inverter of a folder, which must have been trained for this target.

    Raises:
        GradleakError: if it was trained for other weights, or the file is damaged.
    """
    folder = Path(folder)
    card = read_card(folder)
    if card.origin.fingerprint != target.fingerprint:
        raise GradleakError(
            f"the inverter in {folder} was trained for other weights ({card.origin.name}, "
            f"{card.origin.fingerprint[:12]}) than those of {target.name} ({target.fingerprint[:12]})"
        )
    with refused_as(f"{folder / FILE} is damaged", SafetensorError):
        with safe_open(str(folder / FILE), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        inverter = rebuild_inverter(card, target, tensors)
    return inverter.to(target.device).requires_grad_(False).eval()


def rebuild_inverter(card: Card, target: Target, tensors: Mapping[str, Tensor]) -> Inverter:
    """Return the inverter of a card with the weights and rows that a file holds, in single precision."""
    widths = {size for name, tensor in tensors.items() if name.startswith("weight.") for size in tensor.shape}
    missing = {*card.hidden} - widths
    if missing:  # before a network of that size is built
        raise GradleakError(f"the card speaks of a layer of {missing.pop():,} units, which is not in the file")
    with torch.random.fork_rng(devices=[]):  # building a network draws weights; the global random state stays
        inverter = Inverter(card, build_reduction(card, target, tensors), target)
    weights = {name.removeprefix("weight."): t.float() for name, t in tensors.items() if name.startswith("weight.")}
    inverter.load_state_dict(weights)
    return inverter


def read_card(folder: Path) -> Card:
    """Return the card of the inverter in a folder.

    Raises:
        GradleakError: if the file cannot be read or is no inverter.
    """
    path = folder / FILE
    check_ordinary(path)
    with refused_as(f"{path} cannot be read", SafetensorError):
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError("it is no inverter")
        return Card.from_json(metadata["card"])


def inverters_in(folder: str | Path) -> Iterator[Path]:
    """Yield the folder if it holds an inverter, and every folder directly in it that does."""
    for path in sorted({Path(folder) / FILE, *Path(folder).glob(f"*/{FILE}")}):
        if path.is_file():
            yield path.parent


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically: a reader finds the old file or the new one, never a part of it."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as temporary:
            save_file(plain, str(temporary), metadata=dict(metadata))
    except (OSError, SafetensorError) as error:
        raise GradleakError(f"{path} cannot be written: {error}") from None
