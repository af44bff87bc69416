"""Updates from two checkpoints of other software: weights before and after local training; used by `capture`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange.protocol import FedAvg, Precision, WireFormat
from gradleak.exchange.update import Origin, Update, read_tensors
from gradleak.targets import Target
from gradleak.targets.adapters.adapter import is_adapter_name


def update_of_checkpoints(
    before: str | Path,
    after: str | Path,
    target: Target,
    training: FedAvg,
    *,
    precision: Precision = "fp32",
    send: WireFormat = "fp32",
    clients: int = 1,
) -> Update:
    """Return the update that turned one checkpoint into another.

    Tensors that are equal in both files were frozen, and are left out.

    Args:
        before: weights before local training, as safetensors, which must be those of `target`.
        after: weights after it, of the same names and shapes.
        target: the model.
        training: the protocol of local training.
        precision: see `Update`, like `send` and `clients`.
        send: see `Update`.
        clients: see `Update`.

    Raises:
        GradleakError: if the files do not fit each other or the model, or hold the same weights.
    """
    old, _ = read_tensors(before)
    new, _ = read_tensors(after)
    _check_pair(old, new, before, after)
    changed = [name for name, tensor in old.items() if not torch.equal(tensor, new[name])]
    if not changed:
        raise GradleakError(f"{before} and {after} hold the same weights: nothing was trained")
    _check_model(old, before, target)
    tensors = {name: _wide(new[name]) - _wide(old[name]) for name in changed}
    update = Update(
        tensors,
        "difference",
        origin=Origin.of(target),
        training=training,
        precision=precision,
        send=send,
        clients=clients,
    )
    update.check(target)
    return update


def _check_pair(old: Mapping[str, Tensor], new: Mapping[str, Tensor], before: str | Path, after: str | Path) -> None:
    if not old:
        raise GradleakError(f"{before} holds no tensors")
    for names, others, there, missing in ((old, new, before, after), (new, old, after, before)):
        alone = next((name for name in names if name not in others), None)
        if alone is not None:
            raise GradleakError(
                f"{before} and {after} do not fit each other: '{alone}' is in {there}, not in {missing}"
            )
    for name, tensor in old.items():
        if tensor.shape != new[name].shape:
            shapes = f"{tuple(tensor.shape)} and {tuple(new[name].shape)}"
            raise GradleakError(f"{before} and {after} do not fit each other: '{name}' has the shapes {shapes}")


def _check_model(old: Mapping[str, Tensor], before: str | Path, target: Target) -> None:
    """Refuse weights that are not the model's; names that are no parameters, such as buffers, may be there, too."""
    known = {name: parameter for name, parameter in target.parameters.items() if name in old}
    if not known and target.adapter is None and all(map(is_adapter_name, old)):
        raise GradleakError(f"{before} holds weights of an adapter: give --adapter with the one before training")
    if not known:
        raise GradleakError(f"{before} does not fit the model: none of its names is a parameter of {target.name}")
    for name, parameter in known.items():
        tensor = old[name].to(parameter.device)
        if tensor.shape != parameter.shape:
            shapes = f"{tuple(tensor.shape)}; {target.name} expects {tuple(parameter.shape)}"
            raise GradleakError(f"{before} does not fit the model: '{name}' has shape {shapes}")
        if not torch.equal(tensor, parameter.detach().to(tensor.dtype)):
            raise GradleakError(
                f"{before} holds other weights than {target.name} ('{name}' differs): "
                "give --model the folder of the weights before training"
            )


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
