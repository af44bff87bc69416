"""`Update`: what a client sends, and all that an attack sees of its private batch; saved as safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gradleak.bounds import (
    LARGEST_ENTRY,
    LARGEST_TORCH_SEED,
    LONGEST_NAME,
    MOST_CLASSES,
    MOST_CLIENTS,
    MOST_STEPS,
    whole_number,
)
from gradleak.errors import GradleakError
from gradleak.exchange.protocol import FedAvg, Precision, Protocol, WireFormat
from gradleak.files import check_ordinary, refused_as, write_atomically
from gradleak.printable import quoted
from gradleak.settings import settings_of
from gradleak.targets import Lora, Target

FORMAT = "gradleak-update"
Kind = Literal["gradient", "difference"]
NUMBER_FORMATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Of an update's tensors."""
_TRANSPORT = ("precision", "send", "clients")


@dataclass(frozen=True)
class Origin:
    """Identity of the model an update was computed on, to load the same one again."""

    name: str
    task: str
    num_labels: int
    seed: int
    fingerprint: str
    trained_head: bool | None = None  # whether its classifier is the checkpoint's own; None in files of older versions
    lora: Lora | None = None  # the settings of a fresh adapter, which is built from them and the seed
    adapter: str | None = None  # the fingerprint of an adapter from a directory

    @classmethod
    def of(cls, target: Target) -> Origin:
        """Return the identity of a target."""
        lora = None if target.adapter is None else target.adapter.lora
        return cls(
            target.name,
            target.task,
            target.num_labels,
            target.seed,
            target.fingerprint,
            target.trained_head,
            lora,
            target.adapter_fingerprint if target.adapter is not None and lora is None else None,
        )

    def check(self, target: Target) -> None:
        """Raise a GradleakError unless this is the identity of `target`."""
        if self.adapter is not None and target.adapter is not None and self.adapter != target.adapter_fingerprint:
            raise GradleakError(
                f"the update was computed on another adapter ({self.adapter[:12]}) than {target.adapter.in_words} "
                f"({target.adapter_fingerprint[:12]}): give --adapter the one before training"
            )
        if self.fingerprint != target.fingerprint:
            raise GradleakError(
                f"the update was computed on other weights ({self.name}, seed {self.seed}, {self.fingerprint[:12]}) "
                f"than those of {target.name}, seed {target.seed} ({target.fingerprint[:12]})"
            )

    @property
    def metadata(self) -> dict[str, str]:
        """The identity for the metadata of a file; what only adapters have is left out without them."""
        adapted = {"lora": self.lora, "adapter": self.adapter}
        return {key: str(value) for key, value in vars(self).items() if key not in adapted or value is not None}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Origin:
        """Read what `metadata` wrote; raise a KeyError or ValueError if that makes no sense."""
        lora = metadata.get("lora")
        long = next((key for key, text in metadata.items() if len(text) > LONGEST_NAME), None)
        if long is not None:
            raise ValueError(f"target.{long} has {len(metadata[long])} characters")
        return cls(
            name=metadata["name"],
            task=metadata["task"],
            num_labels=whole_number(metadata["num_labels"], 0, MOST_CLASSES),
            seed=whole_number(metadata["seed"], 0, LARGEST_TORCH_SEED),
            fingerprint=metadata["fingerprint"],
            trained_head={"True": True, "False": False}.get(metadata.get("trained_head", "")),
            lora=None if lora is None else Lora.parse(lora),
            adapter=metadata.get("adapter"),
        )


@dataclass(frozen=True)
class Update:
    """Named tensors, and what the training protocol makes public.

    Only the tensors' values depend on the private batch: there is no length, label, batch size or client seed here.

    Attributes:
        tensors: gradients, or differences of weights, by parameter name.
        kind: `gradient` (FedSGD) or `difference` (FedAvg: weights after minus weights before).
        learning_rate: of the local steps of FedAvg; follows from `training` if that is given.
        steps: number of local steps of FedAvg; None if the protocol says epochs instead.
        origin: the model it was computed on; None for a file of other software.
        training: the protocol of local training; plain SGD if only rate and steps are given, None for FedSGD.
        precision: number format of the client's forward and backward passes.
        send: number format in which the update was sent; the tensors here are converted back.
        clients: number of clients whose updates are summed.
    """

    tensors: Mapping[str, Tensor]
    kind: Kind = "gradient"
    learning_rate: float | None = None
    steps: int | None = None
    origin: Origin | None = None
    training: FedAvg | None = None
    precision: Precision = "fp32"
    send: WireFormat = "fp32"
    clients: int = 1

    def __post_init__(self) -> None:
        rate, steps = self.learning_rate, self.steps
        if self.training is None and self.kind == "difference" and rate and steps and 0 < rate < inf and steps > 0:
            object.__setattr__(self, "training", FedAvg(steps=steps, lr=float(rate)))
        if self.training is not None:
            object.__setattr__(self, "learning_rate", self.training.lr)
            object.__setattr__(self, "steps", self.training.steps)

    @property
    def num_values(self) -> int:
        """Number of entries of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def protocol(self) -> Protocol:
        """All that is public of how the update was made."""
        return Protocol(self.training, self.precision, self.send, self.clients)

    def gradient(self) -> dict[str, Tensor]:
        """Return the gradient: the update itself, or for FedAvg the mean over the local steps.

        With small learning rates the weights hardly move during the local steps, and the difference is close to
        −learning rate × the sum of the gradients at the initial weights (LAMP, section 5). A sum over clients gives
        their mean. Where the protocol says epochs, their number takes the place of that of the steps, which the
        attacker does not know. Whatever the optimiser was, the difference is divided in the same way: for Adam and
        AdamW the result is a mean of normalised steps, no gradient.
        """
        if self.kind == "gradient":
            return dict(self.tensors) if self.clients == 1 else {n: t / self.clients for n, t in self.tensors.items()}
        if self.training is None:
            raise GradleakError("a weight difference needs the learning rate and the number of local steps")
        return {name: tensor * self._factor for name, tensor in self.tensors.items()}

    @property
    def _factor(self) -> float:
        """The factor between the tensors and the gradient."""
        training = self.training
        if self.kind == "gradient" or training is None:
            return 1.0 / self.clients
        return -1.0 / (training.lr * (training.steps or training.epochs or 1) * self.clients)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Update:
        """Return a copy with other tensors."""
        return replace(self, tensors=dict(tensors))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Update:
        """Return a copy on another device or of another number format."""
        return self.with_tensors({n: t.to(device=device, dtype=dtype) for n, t in self.tensors.items()})

    def check(self, target: Target) -> None:
        """Raise a GradleakError unless names, shapes, values and origin fit `target`."""
        if not self.tensors:
            raise GradleakError("the update holds no tensors")
        parameters = target.parameters
        for name, tensor in self.tensors.items():
            if name not in parameters:
                from gradleak.exchange.names import nearest_parameter

                near = nearest_parameter(name, target)
                raise GradleakError(f"the update's tensor '{name}' is not a parameter of {target.name}{near}")
            expected, found = tuple(parameters[name].shape), tuple(tensor.shape)
            if expected != found:
                raise GradleakError(f"the update's tensor '{name}' has shape {found}; {target.name} expects {expected}")
            self._check_numbers(name, tensor)
        if self.origin is not None:
            self.origin.check(target)

    def _check_numbers(self, name: str, tensor: Tensor) -> None:
        """Raise a GradleakError unless a tensor's entries are numbers of a client's training."""
        if tensor.dtype not in NUMBER_FORMATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise GradleakError(f"the update's tensor '{name}' holds {kind}; gradients are floats of 16 to 64 bits")
        if not torch.isfinite(tensor).all():
            raise GradleakError(f"the update's tensor '{name}' holds NaN or Inf")
        if tensor.numel() and float(tensor.abs().max()) * abs(self._factor) > LARGEST_ENTRY:
            raise GradleakError(f"the update's tensor '{name}' stands for gradients above {LARGEST_ENTRY:g}")

    def save(self, path: str | Path) -> int:
        """Write the update as safetensors, which only their owner may read, and return the size in bytes."""
        metadata = {"format": FORMAT, "schema": "1", "kind": self.kind} | self._protocol_metadata()
        if self.origin is not None:
            metadata |= {f"target.{key}": value for key, value in self.origin.metadata.items()}
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors.items()}
        try:
            with write_atomically(Path(path)) as temporary:
                save_file(tensors, str(temporary), metadata=metadata)
                return temporary.stat().st_size
        except SafetensorError as error:
            raise GradleakError(f"{path} cannot be written: {error}") from None

    def _protocol_metadata(self) -> dict[str, str]:
        """Return what the file states of the protocol; what is as it always was is left out."""
        metadata: dict[str, str] = {}
        if self.kind == "difference":
            if self.learning_rate is None or (self.steps is None and self.training is None):
                raise GradleakError("a weight difference needs the learning rate and the number of local steps")
            metadata["learning_rate"] = repr(float(self.learning_rate))
            metadata |= {} if self.steps is None else {"steps": str(self.steps)}
        training = self.further_protocol()
        metadata |= {f"training.{name}": str(value) for name, value in training.pop("training", {}).items()}
        return metadata | {name: str(value) for name, value in training.items()}

    def further_protocol(self) -> dict[str, Any]:
        """Return what is public besides kind, rate and steps: each entry only if it is not the usual one."""
        usual = {"precision": "fp32", "send": "fp32", "clients": 1}
        stated = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        training = self.training.as_dict() if self.training is not None else {}
        others = {name: value for name, value in training.items() if name not in ("lr", "steps") and value is not None}
        return stated | ({"training": others} if others else {})

    @classmethod
    def from_weights(
        cls,
        before: Mapping[str, Any] | str | Path,
        after: Mapping[str, Any] | str | Path,
        *,
        protocol: Protocol | FedAvg | str,
        target: Target | None = None,
    ) -> Update:
        """Return the update of a client that any other software trained: weights after minus weights before.

        Tensors that are equal in both were frozen, and are left out. Names may have the prefixes of Opacus
        (`_module.`), DistributedDataParallel (`module.`), torch.compile (`_orig_mod.`) and PEFT (`base_model.model.`);
        tensors may be arrays, on any device and of any number format.

        Args:
            before: weights by name before local training, or the safetensors file that holds them.
            after: the same after it.
            protocol: how the client trained, as `optimizer=adamw,lr=5e-5,steps=10,batch=4`; `precision`, `send` and
                `clients` may be there, too.
            target: the model with the weights before; then names, shapes and weights are checked against it.

        Raises:
            GradleakError: if weights, target and protocol do not fit each other; of a name that is no parameter, with
                the nearest one.
        """
        from gradleak.exchange.checkpoints import update_from_weights

        return update_from_weights(before, after, protocol, target)

    @classmethod
    def from_gradients(
        cls,
        gradients: Mapping[str, Any] | str | Path,
        *,
        protocol: Protocol | str | None = None,
        target: Target | None = None,
    ) -> Update:
        """Return the update of a client that sends gradients; names and formats as in `from_weights`.

        Args:
            gradients: gradients by parameter name, or the safetensors file that holds them.
            protocol: precision, number format and number of clients, as `precision=bf16,send=fp16`.
            target: the model, to check names and shapes.
        """
        from gradleak.exchange.checkpoints import update_from_gradients

        return update_from_gradients(gradients, protocol, target)

    @classmethod
    def load(cls, path: str | Path) -> Update:
        """Read an update; a file of other software is read as a gradient."""
        tensors, metadata = read_tensors(path)
        return cls(tensors, **_from_metadata(metadata, path))


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    check_ordinary(Path(path))
    _refuse_pickle(Path(path))
    with (
        refused_as(f"{path} is corrupt or truncated", SafetensorError),
        safe_open(str(path), framework="pt") as file,
    ):
        metadata = file.metadata() or {}
        return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118 - not a mapping


def _refuse_pickle(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    # A safetensors file begins with eight bytes of header size, which may have any value, and a brace.
    if start[8:] != b"{" and (start[:2] == b"PK" or start[:1] == b"\x80"):
        raise GradleakError(f"{path} looks like a pickle, which can run code; save the update as safetensors")


def _from_metadata(metadata: Mapping[str, str], path: str | Path) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = {"kind": metadata.get("kind", "gradient")}
        if fields["kind"] not in ("gradient", "difference"):
            raise ValueError(metadata["kind"])
        if fields["kind"] == "difference":
            fields |= _training(metadata)
        fields |= _transport(metadata)
        if "target.name" in metadata:
            prefix = "target."
            target = {key.removeprefix(prefix): text for key, text in metadata.items() if key.startswith(prefix)}
            fields["origin"] = Origin.from_metadata(target)
    except (KeyError, ValueError) as error:
        raise GradleakError(f"{path} has metadata that make no sense: {quoted(str(error))}") from None
    return fields


def _training(metadata: Mapping[str, str]) -> dict[str, Any]:
    declared, prefix = settings_of(FedAvg), "training."
    stated = {key.removeprefix(prefix): text for key, text in metadata.items() if key.startswith(prefix)}
    others = {name: declared[name].parse(text) for name, text in stated.items()}
    others["lr"] = declared["lr"].parse(metadata["learning_rate"])
    if "steps" in metadata:
        others["steps"] = whole_number(metadata["steps"], 1, MOST_STEPS)
    return {"training": FedAvg(**others)}


def _transport(metadata: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: metadata[name] for name in _TRANSPORT if name in metadata}
    for name, allowed in (("precision", get_args(Precision)), ("send", get_args(WireFormat))):
        if fields.get(name, allowed[0]) not in allowed:
            raise ValueError(fields[name])
    if "clients" in fields:
        fields["clients"] = whole_number(fields["clients"], 1, MOST_CLIENTS)
    return fields
