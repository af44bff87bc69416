"""Put PEFT's LoRA layers into a target's model, and describe them; the only importer of PEFT."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from gradleak.errors import GradleakError, missing_extra
from gradleak.targets.adapters.adapter import ADAPTER_NAME, PREFIX, AdaptedModule, Adapter, head_paths, layer_number
from gradleak.targets.adapters.lora import ALL_LINEAR, Lora
from gradleak.targets.target import Target

CLASSIFIER_NAMES = ("classifier", "score")
"""Ends of the modules that PEFT trains with the adapters of a sequence classifier."""


def check_unadapted(target: Target) -> None:
    """Raise a GradleakError if a target has adapters already."""
    if target.adapter is not None:
        raise GradleakError(f"{target.name} has adapters already: {target.adapter.in_words}")


def adaptable(target: Target, heads: Sequence[str] = ()) -> list[str]:
    """Return the paths of the linear layers of a model that adapters can be put on, trained heads left out."""
    outer = {f"{head}." for head in heads}
    output = target.classifier
    return [
        path
        for path, module in target.model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and path != output
        and not any(f"{path}.".startswith(head) for head in outer)
    ]


def default_heads(target: Target) -> tuple[str, ...]:
    """Return the modules that are trained whole beside a fresh adapter: those of a classifier."""
    return head_paths(target.model, CLASSIFIER_NAMES) if target.task == "classification" else ()


def matching_modules(target: Target, lora: Lora, heads: Sequence[str]) -> tuple[list[str], str]:
    """Return the paths of the modules that a fresh adapter is put on, and its targets written out.

    Raises:
        GradleakError: if a name matches no linear layer.
    """
    paths = adaptable(target, heads)
    names = lora.target_list
    if names == [ALL_LINEAR]:
        return paths, ALL_LINEAR
    kinds = sorted({path.rpartition(".")[2] for path in paths})
    if not names:
        layers = target.layers
        if not layers:
            raise GradleakError(f"{target.name} has no attention to adapt; give targets={'+'.join(kinds)}")
        first = (layers[0].query, layers[0].value)
        names = list(dict.fromkeys(projection.module.rpartition(".")[2] for projection in first))
    for name in names:
        if not any(_ends_in(path, name) for path in paths):
            raise GradleakError(f"{target.name} has no module '{name}' to adapt; there are {', '.join(kinds)}")
    return [path for path in paths if any(_ends_in(path, name) for name in names)], "+".join(names)


def inject(
    target: Target,
    paths: Sequence[str],
    options: Mapping[str, Any],
    *,
    heads: Sequence[str] = (),
    lora: Lora | None = None,
    folder: Path | None = None,
) -> Target:
    """Put LoRA layers on modules of a target's model, in place, and return the target with them.

    The target given shares its model with the one returned: use only the latter. The adapters' weights are not yet
    set.

    Args:
        target: a target without adapters.
        paths: the modules to adapt.
        options: settings of PEFT's `LoraConfig`.
        heads: modules that are trained whole.
        lora: the settings of a fresh adapter.
        folder: the directory of one that is not fresh.
    """
    peft = _peft()
    config = peft.LoraConfig(target_modules=list(paths), **options)
    # PEFT draws weights, which the caller's random state must not see, and warns of GPT-2's Conv1D.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = peft.inject_adapter_in_model(config, target.model, adapter_name=ADAPTER_NAME)
    modules = tuple(_described(path, model.get_submodule(path)) for path in paths)
    model.to(device=target.device, dtype=target.dtype)
    return target.with_model(model, Adapter(modules, tuple(heads), lora, folder))


def _described(path: str, layer: Any) -> AdaptedModule:  # noqa: ANN401 - a layer of PEFT
    return AdaptedModule(
        path=path,
        layer=layer_number(path),
        a=f"{PREFIX}{path}.lora_A.weight",
        b=f"{PREFIX}{path}.lora_B.weight",
        scaling=float(layer.scaling[ADAPTER_NAME]),
        dropout=float(getattr(layer.lora_dropout[ADAPTER_NAME], "p", 0.0)),
    )


def _ends_in(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _peft() -> Any:  # noqa: ANN401 - an optional package
    try:
        import peft
    except ImportError:
        raise missing_extra("peft", "peft", "an adapter") from None
    return peft
