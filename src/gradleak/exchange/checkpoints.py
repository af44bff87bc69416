"""Updates from weights before and after local training by other software: two files, or two state dicts.

Used by `Update.from_weights` and `Update.from_gradients`, by `capture`, and by the audits of running federations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange.names import fitting_names, plain_names
from gradleak.exchange.protocol import FedAvg, Protocol
from gradleak.exchange.update import Origin, Update, read_tensors
from gradleak.targets import Target
from gradleak.targets.adapters.adapter import is_adapter_name

Weights = Mapping[str, Any] | str | Path
"""Tensors or arrays by name, or the safetensors file that holds them."""


def update_from_weights(
    before: Weights, after: Weights, protocol: Protocol | FedAvg | str, target: Target | None = None
) -> Update:
    """Return the update that turned some weights into others; see `Update.from_weights`."""
    stated = as_protocol(protocol)
    if stated.training is None:
        raise GradleakError(
            "weights before and after need steps=…,lr=… in the protocol: how they came to differ; "
            "for gradients call Update.from_gradients"
        )
    (old, first), (new, second) = _read(before, "before"), _read(after, "after")
    check_pair(old, new, first, second)
    changed = [name for name, tensor in old.items() if not torch.equal(*_comparable(tensor, new[name]))]
    if not changed:
        raise GradleakError(f"{first} and {second} hold the same weights: nothing was trained")
    tensors = {name: _wide(new[name]) - _wide(old[name]) for name in changed}
    if target is not None:
        _check_model(old, first, target)
        tensors = fitted(tensors, target)
    update = _made(tensors, "difference", stated, target)
    if target is not None:
        update.check(target)
    return update


def update_from_gradients(
    gradients: Weights, protocol: Protocol | str | None = None, target: Target | None = None
) -> Update:
    """Return gradients as an update; see `Update.from_gradients`."""
    stated = Protocol() if protocol is None else as_protocol(protocol)
    if stated.training is not None:
        raise GradleakError("gradients have no local training: leave steps and lr out, or call Update.from_weights")
    tensors, _ = _read(gradients, "the gradients")
    tensors = {name: _wide(tensor) for name, tensor in tensors.items()}
    update = _made(tensors if target is None else fitted(tensors, target), "gradient", stated, target)
    if target is not None:
        update.check(target)
    return update


def as_protocol(protocol: Protocol | FedAvg | str) -> Protocol:
    """Return a protocol that was given as such, as local training alone, or as text.

    Raises:
        GradleakError: if it is none of these, or the text makes no sense.
    """
    if isinstance(protocol, str):
        return Protocol.parse(protocol)
    if not isinstance(protocol, Protocol | FedAvg):
        raise GradleakError(f"a protocol is text as optimizer=adamw,lr=5e-5,steps=10, not {protocol!r}")
    return Protocol(protocol) if isinstance(protocol, FedAvg) else protocol


def named_tensors(tensors: Mapping[str, Any], what: str) -> dict[str, Tensor]:
    """Return tensors or arrays on the CPU, by the names that they have without wrappers.

    Raises:
        GradleakError: if there are none, or one of them is neither tensor nor array.
    """
    if not tensors:
        raise GradleakError(f"{what} holds no tensors")
    found: dict[str, Tensor] = {}
    for name, value in plain_names(tensors).items():
        if isinstance(value, np.ndarray | np.generic):
            value = torch.from_numpy(np.array(value))
        if not isinstance(value, Tensor):
            raise GradleakError(f"'{name}' in {what} is {type(value).__name__}, no tensor or array")
        found[name] = value.detach().cpu()
    return found


def fitted(tensors: Mapping[str, Tensor], target: Target) -> dict[str, Tensor]:
    """Return tensors by the target's parameter names; tied ones once, buffers left out.

    Raises:
        GradleakError: for a name or a shape that is not the target's, with what is expected.
    """
    names = fitting_names(tensors, target)
    found = {own: tensors[name] for name, own in names.items() if own is not None}
    for name, own in names.items():
        if own is None:
            continue
        expected, shape = tuple(target.parameters[own].shape), tuple(tensors[name].shape)
        if expected != shape:
            raise GradleakError(f"'{name}' has shape {shape}; {target.name} expects {expected}")
    if not found:
        raise GradleakError(f"none of the names is a parameter of {target.name}")
    return found


def check_pair(old: Mapping[str, Tensor], new: Mapping[str, Tensor], first: str, second: str) -> None:
    """Raise a GradleakError unless weights before and after have the same names and shapes."""
    for names, others, there, missing in ((old, new, first, second), (new, old, second, first)):
        alone = next((name for name in names if name not in others), None)
        if alone is not None:
            raise GradleakError(
                f"{first} and {second} do not fit each other: '{alone}' is in {there}, not in {missing}"
            )
    for name, tensor in old.items():
        if tensor.shape != new[name].shape:
            shapes = f"{tuple(tensor.shape)} and {tuple(new[name].shape)}"
            raise GradleakError(f"{first} and {second} do not fit each other: '{name}' has the shapes {shapes}")


def _read(weights: Weights, what: str) -> tuple[dict[str, Tensor], str]:
    """Return tensors by plain names, and what to call them in messages."""
    if isinstance(weights, str | Path):
        return named_tensors(read_tensors(weights)[0], str(weights)), str(weights)
    return named_tensors(weights, what), what


def _made(tensors: Mapping[str, Tensor], kind: Any, stated: Protocol, target: Target | None) -> Update:  # noqa: ANN401
    return Update(
        dict(tensors),
        kind,
        origin=None if target is None else Origin.of(target),
        training=stated.training,
        precision=stated.precision,
        send=stated.send,
        clients=stated.clients,
    )


def _check_model(old: Mapping[str, Tensor], before: str, target: Target) -> None:
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


def _comparable(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return (one, other) if one.dtype == other.dtype else (_wide(one), _wide(other))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
