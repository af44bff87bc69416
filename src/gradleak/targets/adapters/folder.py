"""A LoRA adapter from a directory: `adapter_config.json` and its weights, as PEFT's `save_pretrained` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from gradleak.bounds import LARGEST_RANK
from gradleak.errors import GradleakError
from gradleak.files import check_ordinary, refused_as
from gradleak.printable import quoted
from gradleak.targets.adapters.adapter import PREFIX
from gradleak.targets.adapters.injection import check_unadapted, inject
from gradleak.targets.folders import read_json
from gradleak.targets.reading import Trust, read_pickled_tensors
from gradleak.targets.registry import MODELS
from gradleak.targets.target import Target

CONFIG, WEIGHTS, PICKLED_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TASKS = {"SEQ_CLS": "classification", "CAUSAL_LM": "causal-lm"}
_A, _B = ".lora_A.weight", ".lora_B.weight"
_HEAD_ENDS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")

_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "a bias of its own",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "layer_replication": "replicated layers",
    "target_parameters": "adapted parameters",
    "trainable_token_indices": "trained token rows",
    "megatron_config": "Megatron layers",
}
"""Settings of PEFT's LoraConfig that make it another method than plain LoRA."""

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that also change the base weights."""


@dataclass(frozen=True)
class AdapterFiles:
    """The content of an adapter's directory.

    Attributes:
        folder: the directory.
        config: its `adapter_config.json`.
        tensors: its weights by PEFT's names.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def paths(self) -> list[str]:
        """Paths of the adapted modules in the base model."""
        return [name.removeprefix(PREFIX).removesuffix(_A) for name in self.tensors if name.endswith(_A)]

    @property
    def heads(self) -> dict[str, Tensor]:
        """Weights that were trained as a whole, by their names in the base model."""
        return {n.removeprefix(PREFIX): t for n, t in self.tensors.items() if not n.endswith((_A, _B))}

    @property
    def classes(self) -> int | None:
        """The number of classes of its classifier; None if it has none."""
        rows = [len(tensor) for name, tensor in self.heads.items() if name.endswith(_HEAD_ENDS)]
        return rows[-1] if rows else None


def read_adapter(folder: str | Path, *, allow_pickle: bool = False) -> AdapterFiles:
    """Read an adapter's directory, without loading the base model.

    Args:
        folder: the directory.
        allow_pickle: also read `adapter_model.bin`.

    Raises:
        GradleakError: if there is no adapter in it, or one that is not plain LoRA.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        what = "is a file; give the directory that holds" if path.is_file() else "is no directory; give the one with"
        raise GradleakError(f"{folder} {what} {CONFIG} and {WEIGHTS}")
    config = _read_config(path)
    _refuse_other_methods(path, config)
    files = AdapterFiles(path, config, _read_weights(path, allow_pickle))
    _check_names(files)
    return files


def adapter_classes(folder: str | Path, *, allow_pickle: bool = False) -> int | None:
    """Return the number of classes of the classifier that comes with an adapter; None if none does."""
    return read_adapter(folder, allow_pickle=allow_pickle).classes


def with_adapter(target: Target, files: AdapterFiles) -> Target:
    """Return a target with an adapter, which shares its model with the one given: use only that returned.

    Raises:
        GradleakError: if the adapter is for another base model or task, or PEFT is not installed.
    """
    check_unadapted(target)
    _check_base(target, files)
    _check_shapes(target, files)
    wanted = ("r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern")
    options = {name: files.config[name] for name in wanted if files.config.get(name) is not None}
    heads = sorted({name.rpartition(".")[0] for name in files.heads})
    adapted = inject(target, files.paths, options, heads=heads, folder=files.folder)
    with torch.no_grad():
        for name, tensor in files.tensors.items():
            parameter = adapted.parameters[name]
            if parameter.shape != tensor.shape:
                raise _misfit(target, files, name, tensor, tuple(parameter.shape))
            parameter.copy_(tensor)
    adapted.trained_head = adapted.trained_head or files.classes is not None
    return adapted


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise GradleakError(f"{folder} holds no adapter: there is no {CONFIG} in it")
    return read_json(path)


def _refuse_other_methods(folder: Path, config: Mapping[str, Any]) -> None:
    kind = str(config.get("peft_type"))
    if kind != "LORA":
        raise GradleakError(f"{folder} is an adapter of kind {kind}; only LORA is supported")
    for name, words in _REFUSED.items():
        if config.get(name):
            raise GradleakError(f"{folder} uses {words} ({name}); only plain LoRA and rsLoRA are supported")
    if config.get("bias", "none") != "none":
        raise GradleakError(f"{folder} trains biases (bias={config['bias']}); only bias=none is supported")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGES_BASE):
        raise GradleakError(f"{folder} began with {start}, which changes the base weights: convert it to plain LoRA")
    pattern = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [pattern])]
    wrong = next((rank for rank in ranks if not isinstance(rank, int) or not 1 <= rank <= LARGEST_RANK), None)
    if wrong is not None or None in ranks:
        raise GradleakError(f"{folder} has the rank r={quoted(str(wrong))}; it must be from 1 to {LARGEST_RANK}")


def _read_weights(folder: Path, allow_pickle: bool) -> dict[str, Tensor]:
    path, pickled = folder / WEIGHTS, folder / PICKLED_WEIGHTS
    if not path.is_file():
        if not pickled.is_file():
            raise GradleakError(f"{folder} holds no weights of an adapter: there is no {WEIGHTS} in it")
        return read_pickled_tensors(pickled, Trust(pickle=allow_pickle))
    check_ordinary(path)
    with refused_as(f"{path} is corrupt or truncated", SafetensorError):
        tensors: dict[str, Tensor] = load_file(path)
    return tensors


def _check_names(files: AdapterFiles) -> None:
    """Refuse names that are not those of `get_peft_model_state_dict`, and an A without its B."""
    if not files.paths:
        raise GradleakError(f"{files.folder} holds no LoRA weights: no name in its weights ends in {_A}")
    for name in files.tensors:
        if not name.startswith(PREFIX) or (".lora_" in name and not name.endswith((_A, _B))):
            raise GradleakError(f"{files.folder} holds '{name}', which is no weight of plain LoRA as PEFT saves it")
        other = name.replace(_A, _B) if name.endswith(_A) else name.replace(_B, _A)
        if other not in files.tensors:
            raise GradleakError(f"{files.folder} holds '{name}' without '{other}'")


def _check_base(target: Target, files: AdapterFiles) -> None:
    """Refuse an adapter of another task, or of a base model that has another name.

    Names of directories tell nothing: the same model may lie elsewhere. Then the shapes decide.
    """
    task = TASKS.get(str(files.config.get("task_type")), target.task)
    if task != target.task:
        raise GradleakError(f"the adapter in {files.folder} is for {task}: give --task {task} (task='{task}')")
    base = str(files.config.get("base_model_name_or_path") or "")
    entry = MODELS.get(target.name)
    own = {target.name, str(entry.hub_id)} if entry is not None else {target.name}
    if not base or _is_path(base) or any(map(_is_path, own)):
        return
    if _last_part(base) not in set(map(_last_part, own)):
        raise GradleakError(f"the adapter in {files.folder} was trained on '{base}', not on '{target.name}'")


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name or Path(name).is_dir()


def _last_part(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _check_shapes(target: Target, files: AdapterFiles) -> None:
    modules = dict(target.model.named_modules())
    for path in files.paths:
        module = modules.get(path)
        if module is None:
            raise GradleakError(
                f"the adapter in {files.folder} does not fit {target.name}: the model has no module '{path}'"
            )
        if not isinstance(module, nn.Linear | Conv1D):
            raise GradleakError(f"the adapter in {files.folder} adapts '{path}', which is no linear layer")
        outputs, inputs = module.weight.shape if isinstance(module, nn.Linear) else reversed(module.weight.shape)
        for name, dim, size in ((f"{PREFIX}{path}{_A}", 1, inputs), (f"{PREFIX}{path}{_B}", 0, outputs)):
            tensor = files.tensors[name]
            if tensor.ndim != 2 or tensor.shape[dim] != size:
                expected = ("r", size) if dim else (size, "r")
                raise _misfit(target, files, name, tensor, expected)
    owners = [id(p) for m in modules.values() for p in m.parameters(recurse=False)]
    for name, tensor in files.heads.items():
        parameter = target.parameters.get(name)
        if parameter is None or owners.count(id(parameter)) > 1:
            what = (
                "is tied to another" if parameter is not None or name.startswith("lm_head") else "is none of the model"
            )
            raise GradleakError(f"the adapter in {files.folder} also trained '{name}', which {what}: not supported")
        if parameter.shape != tensor.shape:
            raise _misfit(target, files, PREFIX + name, tensor, tuple(parameter.shape))


def _misfit(
    target: Target, files: AdapterFiles, name: str, tensor: Tensor, expected: tuple[object, ...]
) -> GradleakError:
    wanted = f"({', '.join(map(str, expected))})"
    return GradleakError(
        f"the adapter in {files.folder} does not fit {target.name}: '{name}' has shape {tuple(tensor.shape)}, "
        f"where {wanted} is expected"
    )
