"""`load_target`: load a model by name, from a directory, or from the Hugging Face hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from gradleak.assets import asset_path
from gradleak.assets.storage import load_compact
from gradleak.bounds import LARGEST_TORCH_SEED, LONGEST_NAME, MOST_CLASSES
from gradleak.errors import GradleakError, unknown_name
from gradleak.printable import quoted
from gradleak.targets import families
from gradleak.targets.adapters.folder import read_adapter, with_adapter
from gradleak.targets.adapters.fresh import with_lora
from gradleak.targets.adapters.lora import Lora
from gradleak.targets.attention import NAME as ATTENTION
from gradleak.targets.gguf import SUFFIX as GGUF
from gradleak.targets.gguf import converted_gguf
from gradleak.targets.initialise import initialise
from gradleak.targets.layout import TASKS, Task, family_of
from gradleak.targets.reading import Trust, explained, quiet, read_config, read_model, read_tokenizer
from gradleak.targets.registry import MODELS, ModelEntry
from gradleak.targets.target import Target

__all__ = [
    "families",
    "is_here",
    "load_target",
    "resolve_device",
    "trained_classes",
]  # importing families registers them

MODEL_CLASSES: dict[Task, Any] = {
    "classification": AutoModelForSequenceClassification,
    "causal-lm": AutoModelForCausalLM,
}
HEAD_SUFFIXES: dict[Task, tuple[str, ...]] = {
    "classification": ("ForSequenceClassification",),
    "causal-lm": ("ForCausalLM", "LMHeadModel"),
}


def load_target(  # noqa: PLR0913 - the public interface, by keyword
    name: str,
    num_labels: int | None = None,
    seed: int = 0,
    *,
    task: Task = "classification",
    device: str | torch.device = "cpu",
    random_weights: bool = False,
    new_head: bool = False,
    lora: Lora | None = None,
    adapter: str | Path | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Target:
    """Load the model to audit.

    Args:
        name: a name that `gradleak list models` shows, a directory, a GGUF file, or a hub id (`organisation/model`).
        num_labels: classes of the classifier; by default the checkpoint's own, or 2. A classifier that the checkpoint
            has keeps its number unless `new_head` is set.
        seed: seed of every weight that the checkpoint does not have; the same name and seed give the same weights.
        task: `classification` or `causal-lm`.
        device: `cpu`, `cuda`, or `auto`.
        random_weights: build the architecture with weights from the seed and read no checkpoint.
        new_head: draw the classifier from the seed even if the checkpoint has one.
        lora: put a fresh LoRA adapter on the model, drawn from the seed; clients then train and send that only.
        adapter: the directory of a LoRA adapter as PEFT saves it, in place of a fresh one. A classifier that comes
            with it takes the place of the checkpoint's.
        allow_pickle: also read checkpoints that are not safetensors. A pickle can run code: only for files you trust.
        trust_remote_code: run the code that comes with the model.

    Raises:
        GradleakError: with one line on what is wrong and how to fix it.
    """
    check_request(name, num_labels, seed, task)
    if lora is not None and adapter is not None:
        raise GradleakError("a fresh adapter (--lora) and one from a directory (--adapter) exclude each other")
    trust = Trust(allow_pickle, trust_remote_code)
    files = None if adapter is None else read_adapter(adapter, allow_pickle=allow_pickle)
    if files is not None and files.classes is not None and task == "classification":
        _refuse_other_classes(files.classes, num_labels, new_head)
        num_labels, new_head = files.classes, True
    # Building a model draws weights: the caller's random state is kept.
    with explained(f"model '{quoted(name)}'", trust), torch.random.fork_rng(devices=[]):
        trained = False
        if name == "tiny":
            model, tokenizer = _embedded(num_labels, seed, task, random_weights)
        elif random_weights or (name in MODELS and not MODELS[name].has_checkpoint):
            model, tokenizer = _random(name, num_labels, seed, task, trust)
        else:
            model, tokenizer, trained = _checkpoint(name, num_labels, seed, task, new_head, trust)
        family = family_of(model.config.model_type)
        target = Target(model, tokenizer, family, name=name, task=task, seed=seed, trained_head=trained)
    if lora is not None:
        target = with_lora(target, lora)
    if files is not None:
        with explained(f"the adapter in {files.folder}"):
            target = with_adapter(target, files)
    return target.to(resolve_device(device))


def check_request(name: str, num_labels: int | None, seed: int, task: str) -> None:
    """Raise a GradleakError for arguments of `load_target` that no model can have."""
    for what, number in (("num_labels", num_labels), ("a seed", seed)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise GradleakError(f"{what} is a whole number, not {quoted(repr(number))}")
    if len(name) > LONGEST_NAME or "\0" in name:
        raise GradleakError(f"a model's name has at most {LONGEST_NAME:,} characters and no NUL, not '{quoted(name)}'")
    if task not in TASKS:
        raise unknown_name("task", quoted(task), TASKS)
    if num_labels is not None and num_labels < 2:
        raise GradleakError(f"a classifier needs at least 2 labels, not {num_labels}")
    if num_labels is not None and num_labels > MOST_CLASSES:
        raise GradleakError(f"a classifier has at most {MOST_CLASSES:,} labels, not {num_labels:,}")
    if not 0 <= seed <= LARGEST_TORCH_SEED:
        raise GradleakError(f"a seed is a whole number from 0 up, not {seed}")


def _refuse_other_classes(own: int, asked: int | None, new_head: bool) -> None:
    """Raise a GradleakError if a classifier is asked for that is not the adapter's own."""
    if new_head:
        raise GradleakError(f"the adapter has a classifier of its own with {own} classes: leave out --new-head")
    if asked not in (None, own):
        raise GradleakError(f"the adapter's classifier has {own} classes, not {asked}: leave out --num-labels")


def trained_classes(name: str, *, trust_remote_code: bool = False) -> int | None:
    """Return the number of classes in the configuration of a checkpoint's own classifier; None without a classifier.

    Raises:
        GradleakError: if there is no such model, or its configuration cannot be read.
    """
    if name in MODELS:  # none of them has a classifier
        return None
    source = model_source(name)
    trust = Trust(remote_code=trust_remote_code)
    with explained(f"model '{name}'", trust):
        config = read_config(source, trust)
    return _own_labels(config, "classification") if _has_head(config, "classification") else None


def is_here(name: str) -> bool:
    """Return whether a model can be loaded without asking a hub: embedded, from the seed, installed, or a path."""
    if name in MODELS:
        entry = MODELS[name]
        return name == "tiny" or not entry.has_checkpoint or _installed(entry) is not None
    return Path(name).exists()


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of that name; `auto` means a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        raise unknown_name("device", str(device), ["auto", "cpu", "cuda"]) from None
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise GradleakError("there is no CUDA device here; use --device cpu")
    return resolved


def _embedded(num_labels: int | None, seed: int, task: Task, random_weights: bool) -> tuple[PreTrainedModel, Any]:
    folder = asset_path("tiny")
    config = read_config(folder, num_labels=num_labels or 2)
    model = _build(config, task)
    weights = {} if random_weights else load_compact(folder / "model.safetensors")
    names = [name for name, _ in model.named_parameters()]
    model.load_state_dict({n: weights[n] for n in names if n in weights}, strict=False)
    initialise(model, [n for n in names if n not in weights], seed=seed, scale=config.initializer_range)
    return model, read_tokenizer(folder)


def _random(name: str, num_labels: int | None, seed: int, task: Task, trust: Trust) -> tuple[PreTrainedModel, Any]:
    """Build the architecture with weights from the seed; registered names get the embedded tokenizer."""
    if name in MODELS:
        tokenizer: Any = read_tokenizer(asset_path("tiny"))
        architecture = dict(MODELS[name].architecture)
        if "causal-lm" in family_of(architecture["model_type"]).tasks:
            tokenizer = _without_special_tokens(tokenizer)
            architecture |= {"bos_token_id": None, "eos_token_id": None}
        config = AutoConfig.for_model(**architecture, pad_token_id=tokenizer.pad_token_id, num_labels=num_labels or 2)
    else:
        source = model_source(name)
        config = read_config(source, trust)
        config.num_labels = num_labels or _own_labels(config, task)
        tokenizer = read_tokenizer(source, trust)
    model = _build(config, task)
    initialise(model, [n for n, _ in model.named_parameters()], seed=seed, scale=config.initializer_range)
    return model, tokenizer


def _checkpoint(
    name: str, num_labels: int | None, seed: int, task: Task, new_head: bool, trust: Trust
) -> tuple[PreTrainedModel, Any, bool]:
    """Read a checkpoint; return model, tokenizer, and whether the classifier is the checkpoint's own."""
    source = model_source(name)
    config = read_config(source, trust)
    family_of(config.model_type).check_task(task)
    config.num_labels = num_labels or _own_labels(config, task)
    model, info = read_model(
        MODEL_CLASSES[task],
        source,
        trust,
        config=config,
        attn_implementation=ATTENTION,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    family_of(config.model_type).adapt(model)
    tokenizer = read_tokenizer(source, trust)
    head = {f"{family_of(config.model_type).classifier(model, task)}.{part}" for part in ("weight", "bias")}
    if not set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids):
        raise GradleakError(f"'{name}' has no tokenizer: its vocabulary is empty")
    if not new_head:
        _refuse_resizing(name, config.num_labels, [k for k in info["mismatched_keys"] if k[0] in head], num_labels)
    fresh = {*info["missing_keys"], *(key[0] for key in info["mismatched_keys"])}
    if new_head and task == "classification":
        fresh |= head
    body = f"{model.base_model_prefix}."
    lost = sorted(key for key in fresh if key.startswith(body) and ".pooler." not in key)
    if lost:
        raise GradleakError(f"the weights of '{name}' do not fit its config.json: {lost[0]} and {len(lost) - 1} others")
    initialise(model, fresh, seed=seed, scale=config.initializer_range)
    return model, tokenizer, task == "classification" and not fresh & head


def _refuse_resizing(name: str, wanted: int, resized: list[Any], asked: int | None) -> None:
    """Raise a GradleakError if the checkpoint's classifier has a different number of classes."""
    if not resized:
        return
    own = int(resized[0][1][0])
    keep = "" if own < 2 else "leave out --num-labels to keep it, or " if asked else f"give --num-labels {own} or "
    raise GradleakError(
        f"'{name}' has a trained head of {own} classes, not {wanted}: {keep}"
        "give --new-head (new_head=True) for a new one"
    )


def _has_head(config: Any, task: Task) -> bool:  # noqa: ANN401
    return any(str(kind).endswith(HEAD_SUFFIXES[task]) for kind in config.architectures or [])


def _own_labels(config: Any, task: Task) -> int:  # noqa: ANN401
    """Return the number of labels of a checkpoint's own head; 2 if it has none."""
    has_head = _has_head(config, task)
    if has_head and task == "classification" and config.num_labels < 2:
        raise GradleakError(
            f"a classifier needs at least 2 labels, not {config.num_labels}; give --num-labels with --new-head"
        )
    return int(config.num_labels) if has_head else 2


def _build(config: Any, task: Task) -> PreTrainedModel:  # noqa: ANN401
    family_of(config.model_type).check_task(task)
    with quiet():
        model: PreTrainedModel = MODEL_CLASSES[task].from_config(config, attn_implementation=ATTENTION)
    family_of(config.model_type).adapt(model)
    return model


def model_source(name: str) -> str:
    """Return the directory or hub id that a name stands for; raise a GradleakError for an unknown name."""
    if name in MODELS:
        return _registered_source(name, MODELS[name])
    path = Path(name)
    if path.suffix == GGUF and path.is_file():
        return str(converted_gguf(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise GradleakError(f"{name} holds no model: there is no config.json in it")
        return name
    if path.is_file():
        raise GradleakError(f"{name} is a file; give the directory that holds config.json and model.safetensors")
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise unknown_name("model", name, MODELS) if "/" not in name else GradleakError(f"no such directory: {name}")
    return name


def _registered_source(name: str, entry: ModelEntry) -> str:
    folder = _installed(entry)
    if folder is None:
        if entry.hub_id is None:
            raise GradleakError(f"the weights of '{name}' come in a package that is not installed: {entry.install}")
        return entry.hub_id
    weights = folder / entry.weights
    return str(converted_gguf(weights) if weights.suffix == GGUF else weights)


def _installed(entry: ModelEntry) -> Path | None:
    """Return the folder of the package that has a model's weights; None if it is not installed."""
    spec = importlib.util.find_spec(entry.package) if entry.package else None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _without_special_tokens(tokenizer: Any) -> Any:  # noqa: ANN401
    backend = type(tokenizer._tokenizer).from_str(tokenizer._tokenizer.to_str())
    backend.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=backend, pad_token=tokenizer.pad_token)
