"""Names of tensors as other software has them, matched with the parameters of a target.

Opacus, DistributedDataParallel and torch.compile put a prefix before every name, PEFT puts one before those of the base
model and the adapter's name into its own. A state dict also holds buffers, and tied weights several times.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from gradleak.errors import GradleakError
from gradleak.targets import Target
from gradleak.targets.adapters.adapter import ADAPTER_NAME, PREFIX, is_adapter_name

WRAPPERS = ("_module.", "module.", "_orig_mod.")
"""What Opacus, DistributedDataParallel and torch.compile put before the names of the model they wrap."""

_SAVED, _ORIGINAL, _BASE = f".modules_to_save.{ADAPTER_NAME}.", ".original_module.", ".base_layer."

Value = TypeVar("Value")


def plain_names(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Return tensors by the names that they have without wrappers; those of adapters as PEFT saves them.

    Args:
        tensors: a state dict of a model, of a wrapped one, or of a PEFT model (whole, or what PEFT saves of it).
    """
    found = dict(tensors)
    while found and all(name.startswith(WRAPPERS) for name in found):
        found = {_unwrapped(name): value for name, value in found.items()}
    if not any(".lora_A." in name or ".lora_B." in name for name in found):
        wrapped = bool(found) and all(name.startswith(PREFIX) for name in found)
        return {name.removeprefix(PREFIX): value for name, value in found.items()} if wrapped else found
    whole = any(_BASE in name or _SAVED in name for name in found)
    named = {name: _adapter_name(name, whole) for name in found}
    return {named[name]: value for name, value in found.items() if _ORIGINAL not in name}


def _unwrapped(name: str) -> str:
    return next(name.removeprefix(wrapper) for wrapper in WRAPPERS if name.startswith(wrapper))


def _adapter_name(name: str, whole: bool) -> str:
    """Return the public name of a weight of an adapted model; `whole`: the base model's weights are there, too."""
    for part in (f".lora_A.{ADAPTER_NAME}.", f".lora_B.{ADAPTER_NAME}."):
        name = name.replace(part, part.replace(f"{ADAPTER_NAME}.", ""))
    trained = _SAVED in name or ".lora_A." in name or ".lora_B." in name
    bare = name.replace(_SAVED, ".").replace(_BASE, ".").removeprefix(PREFIX)
    return PREFIX + bare if trained or not whole else bare


def fitting_names(names: Iterable[str], target: Target) -> dict[str, str | None]:
    """Return the target's parameter for each name; None for buffers, which are none.

    Raises:
        GradleakError: for a name that is neither, with the nearest parameter.
    """
    shared = {id(parameter): name for name, parameter in target.parameters.items()}
    tied = {name: shared[id(p)] for name, p in target.model.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in target.model.named_buffers()}
    found: dict[str, str | None] = {}
    for name in names:
        bare = name.removeprefix(PREFIX)
        known = next((each for each in (name, PREFIX + name, bare) if each in target.parameters), None)
        found[name] = known or tied.get(bare)
        if found[name] is None and bare not in buffers and not bare.endswith("position_ids"):
            raise GradleakError(f"'{name}' is not a parameter of {target.name}{nearest_parameter(name, target)}")
    return found


def nearest_parameter(name: str, target: Target) -> str:
    """Return the end of a message on a name that is no parameter: what it may stand for."""
    if is_adapter_name(name) and target.adapter is None:
        return ": it is one of an adapter; give --adapter with the adapter before training, or --lora"
    if is_adapter_name(name) and target.adapter is not None and not target.adapter.trains(name):
        return f" with {target.adapter.in_words}"
    near = difflib.get_close_matches(name, list(target.parameters), n=1, cutoff=0.0)
    adapter = f" with {target.adapter.in_words}" if target.adapter is not None else ""
    return f"{adapter}; the nearest is '{near[0]}' {tuple(target.parameters[near[0]].shape)}" if near else adapter
