"""`Adapter`: which modules of a target are adapted, and what clients call the parameters that they train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from gradleak.targets.adapters.lora import Lora

PREFIX = "base_model.model."
"""What PEFT puts before the names of a base model's modules."""

ADAPTER_NAME = "default"
"""PEFT's name of an only adapter; `get_peft_model_state_dict` leaves it out."""

_BASE, _A, _B = ".base_layer.", f".lora_A.{ADAPTER_NAME}.", f".lora_B.{ADAPTER_NAME}."


@dataclass(frozen=True)
class AdaptedModule:
    """One adapted linear map: its output is W x + scaling · B A x.

    `captured_inputs(target, ids, [module.path])` gives x. A gradient of A is scaling · Bᵀ Σ δ xᵀ, one of B is
    scaling · Σ δ (A x)ᵀ, over all tokens, with δ the loss's gradient by the output.

    Attributes:
        path: path of the module in `target.model`.
        layer: number of the transformer layer that it is in, from 0; None outside of layers.
        a: name of A `[r, inputs]` in `target.parameters` and in updates.
        b: name of B `[outputs, r]`.
        scaling: the factor of B A x.
        dropout: rate of the dropout of x before A, active while a client trains with dropout.
    """

    path: str
    layer: int | None
    a: str
    b: str
    scaling: float
    dropout: float = 0.0

    def a_in(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return A, or its gradient, in `tensors`."""
        return tensors[self.a]

    def b_in(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return B, or its gradient, in `tensors`."""
        return tensors[self.b]


@dataclass(frozen=True)
class Adapter:
    """The adapters of a target.

    Attributes:
        modules: the adapted modules, in the order of the model.
        heads: paths of modules that are trained and sent as a whole (PEFT's `modules_to_save`).
        lora: the settings of a fresh adapter; None for one from a directory.
        folder: the directory that it comes from; None for a fresh one.
    """

    modules: tuple[AdaptedModule, ...]
    heads: tuple[str, ...] = ()
    lora: Lora | None = None
    folder: Path | None = None

    @cached_property
    def by_layer(self) -> dict[int, tuple[AdaptedModule, ...]]:
        """The adapted modules of each transformer layer, first layer first."""
        numbers = sorted({module.layer for module in self.modules if module.layer is not None})
        return {number: tuple(m for m in self.modules if m.layer == number) for number in numbers}

    @property
    def in_words(self) -> str:
        """What adapts the model, in words."""
        if self.lora is not None:
            return self.lora.in_words
        return f"adapter {self.folder} ({len(self.modules)} modules)"

    def public_name(self, name: str) -> str:
        """Return what a parameter is called outside of the model, by its name in the model.

        Adapters and trained heads have PEFT's names; a base weight under an adapter has the name it had without one.
        """
        for part in (_A, _B):
            if part in name:
                return PREFIX + name.replace(part, part.replace(f"{ADAPTER_NAME}.", ""))
        if any(name.startswith(f"{head}.") for head in self.heads):
            return PREFIX + name
        return name.replace(_BASE, ".")

    def trains(self, name: str) -> bool:
        """Return whether clients train and send the parameter of that public name."""
        return name.startswith(PREFIX)


def is_adapter_name(name: str) -> bool:
    """Return whether a tensor of an update is one of PEFT's LoRA, by its name."""
    return name.startswith(PREFIX) or ".lora_A." in name or ".lora_B." in name


def layer_number(path: str) -> int | None:
    """Return the first number in a module's path, that of its layer; None without one."""
    return next((int(part) for part in path.split(".") if part.isdecimal()), None)


def head_paths(model: nn.Module, names: Sequence[str]) -> tuple[str, ...]:
    """Return the modules whose paths end in one of these names, as PEFT finds its `modules_to_save`; outermost only."""
    found = [path for path, _ in model.named_modules() if path and any(path.endswith(name) for name in names)]
    return tuple(path for path in found if not any(path.startswith(f"{other}.") for other in found))
