"""Read models and tokenizers from files of others, without running anything in them unless the user allows it.

A checkpoint can run code in two ways: weights that are pickles, and Python files that its config.json or
tokenizer_config.json names (`auto_map`). Both are refused unless the user gave the flag. There is never a question on
standard input, which Hugging Face asks if it is told neither yes nor no. Every room that reads a model uses these
functions.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
import pickle
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config, tokenizer_class_from_name
from transformers.utils import logging as hugging_face_logging
from transformers.utils.hub import cached_file

from gradleak.errors import GradleakError
from gradleak.printable import quoted
from gradleak.targets.folders import INDEX, check_folder, check_weights, refuse_pickled_shards

_ARRAYS = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


@dataclass(frozen=True)
class Trust:
    """What the files of a checkpoint may do.

    Attributes:
        pickle: whether pickled weights are read.
        remote_code: whether Python files that come with the checkpoint are run.
        by_flag: whether the user can allow this with flags; errors then name them.
    """

    pickle: bool = False
    remote_code: bool = False
    by_flag: bool = True

    @property
    def refused_pickle(self) -> str:
        """What is done with a pickle that is not trusted, in words."""
        return "read only with --allow-pickle (allow_pickle=True)" if self.by_flag else "not read"


NO_TRUST = Trust(by_flag=False)

DESCRIBED_BY_FILE = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes that add nothing to what tokenizer.json says."""


class _OwnCodeError(Exception):
    """A checkpoint needs Python code that comes with it."""


def read_config(source: str | Path, trust: Trust = NO_TRUST, **changes: Any) -> Any:  # noqa: ANN401
    """Return the configuration of a directory or hub id, with `changes` applied."""
    if Path(source).is_dir():
        check_folder(Path(source))
    return AutoConfig.from_pretrained(source, trust_remote_code=trust.remote_code, **changes)


def read_tokenizer(source: str | Path, trust: Trust = NO_TRUST, **options: Any) -> Any:  # noqa: ANN401
    """Return the tokenizer of a directory or hub id; `options` are passed on to `from_pretrained`.

    If a tokenizer's code may not run, Hugging Face silently substitutes one of its own classes; an audit must not go on
    with a different tokenizer, so this raises instead. For some models, such as Qwen2, it also replaces a tokenizer
    that says it is wholly described by its tokenizer.json; here the file counts.
    """
    settings = get_tokenizer_config(source)
    if not isinstance(settings, dict):
        raise GradleakError(f"{source} has a tokenizer_config.json that holds no JSON object")
    if settings.get("tokenizer_class") in DESCRIBED_BY_FILE and "auto_map" not in settings and not options:
        described: Any = PreTrainedTokenizerFast
        return described.from_pretrained(source)
    known = tokenizer_class_from_name(str(settings.get("tokenizer_class")))
    if "auto_map" in settings and known is None and not trust.remote_code:
        raise _OwnCodeError
    return AutoTokenizer.from_pretrained(source, trust_remote_code=trust.remote_code, **options)


def read_model(kind: Any, source: str | Path, trust: Trust = NO_TRUST, **options: Any) -> Any:  # noqa: ANN401
    """Return the model of a directory or hub id.

    Args:
        kind: a Hugging Face model class, such as `AutoModelForCausalLM`.
        source: the directory or hub id.
        trust: what its files may do.
        options: passed on to `from_pretrained`.
    """
    if not trust.remote_code and _needs_own_class(kind, options.get("config")):
        raise _OwnCodeError
    is_safe = trust.pickle or "gguf_file" in options or bool(list(Path(source).glob("*.safetensors")))
    if Path(source).is_dir() and not is_safe:
        refused = trust.refused_pickle
        raise GradleakError(f"{source} has no weights as safetensors; pickled weights can run code and are {refused}")
    if not trust.pickle and "gguf_file" not in options:
        _refuse_pickled_shards(source, trust)
    if Path(source).is_dir() and "gguf_file" not in options and not trust.remote_code:
        _check_weights(kind, Path(source), options.get("config"))
    safely = None if trust.pickle or "gguf_file" in options else True
    return kind.from_pretrained(source, trust_remote_code=trust.remote_code, use_safetensors=safely, **options)


def _check_weights(kind: Any, folder: Path, config: Any) -> None:  # noqa: ANN401
    """Raise a GradleakError if a model is larger than its files: what they lack would be made up, in memory."""
    with torch.device("meta"):  # shapes alone
        model = kind.from_config(copy.deepcopy(read_config(folder) if config is None else config))
    check_weights(sum(parameter.numel() for parameter in model.parameters()), folder)


def _refuse_pickled_shards(source: str | Path, trust: Trust) -> None:
    """Raise a GradleakError if the index of a directory or hub id names pickles among its safetensors."""
    if Path(source).is_dir():
        check_folder(Path(source))
        indices = sorted(Path(source).glob("*.index.json"))
    else:
        found = cached_file(source, INDEX, _raise_exceptions_for_missing_entries=False)
        indices = [] if found is None else [Path(found)]
    for index in indices:
        if index.name.startswith("model."):
            refuse_pickled_shards(index, trust.refused_pickle)


def _needs_own_class(kind: Any, config: Any) -> bool:  # noqa: ANN401
    """Return whether a configuration names a model class of its own code, in whose place another would be built."""
    named = (getattr(config, "auto_map", None) or {}).get(kind.__name__)
    return isinstance(named, str) and not hasattr(transformers, named.rpartition(".")[2])


def read_pickled_arrays(path: Path, dictionaries: Collection[tuple[str, str]] = ()) -> Any:  # noqa: ANN401
    """Return the nested dictionaries of arrays in a pickle; no flag is needed, because nothing else can be in it.

    Args:
        path: the file.
        dictionaries: modules and names of classes that are read as plain dictionaries.

    Raises:
        ValueError: if the file holds anything else, which is not run.
    """
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, dictionaries).load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise ValueError(str(error)) from None


class _ArraysOnly(pickle.Unpickler):
    """An unpickler of dictionaries of numpy arrays: whatever else a file names is refused, not run."""

    def __init__(self, file: IO[bytes], dictionaries: Collection[tuple[str, str]]) -> None:
        super().__init__(file)
        self._dictionaries = frozenset(dictionaries)

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - the base class's signature
        """Return numpy's own parts of an array, or a dictionary."""
        if (module, name) in self._dictionaries:
            return dict
        if (module.replace("numpy.core", "numpy._core"), name) not in _ARRAYS:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an array")
        return getattr(importlib.import_module(module.replace("numpy.core", "numpy._core")), name)


def read_pickled_tensors(path: Path, trust: Trust = NO_TRUST) -> dict[str, Tensor]:
    """Return the tensors of a pickle by name, if the user allows pickles; torch then reads tensors and nothing else."""
    if not trust.pickle:
        raise GradleakError(f"{path} is a pickle, which can run code: it is {trust.refused_pickle}")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise GradleakError(f"{path} is corrupt or no file of weights: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise GradleakError(f"{path} holds no tensors by name")
    return tensors


@contextlib.contextmanager
def explained(what: str, trust: Trust = NO_TRUST) -> Iterator[None]:
    """Turn any exception about an unreadable checkpoint into a GradleakError of one line, and print nothing.

    Args:
        what: what is read, for the message.
        trust: what its files may do.
    """
    try:
        with quiet():
            yield
    except GradleakError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the tokenizers' Rust code is no Exception
        reason = " ".join(str(error).split())
        if isinstance(error, _OwnCodeError) or ("custom code" in reason and not trust.remote_code):
            refused = "run only with --trust-remote-code (trust_remote_code=True)" if trust.by_flag else "not run"
            raise GradleakError(f"{what} comes with code of its own, which is {refused}") from None
        raise GradleakError(f"{what} could not be loaded: {quoted(reason) or type(error).__name__}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Hugging Face: no progress bars, no warnings about new heads, no lines for hub retries."""
    loggers = [logging.getLogger("transformers"), logging.getLogger("huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars = hugging_face_logging.is_progress_bar_enabled()
    hugging_face_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            hugging_face_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
