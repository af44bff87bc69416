"""GGUF files, converted once into a folder of safetensors in the user's cache that `loading.py` reads as any other.

GGUF holds quantised weights; they are dequantised to float32, so that a client can train them. Needs the extra `gguf`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from gradleak.errors import GradleakError
from gradleak.targets.layout import FAMILIES
from gradleak.targets.reading import Trust, explained, read_config, read_model, read_tokenizer

SUFFIX = ".gguf"
PACKAGES = ("gguf", "accelerate")


def converted_gguf(path: Path) -> Path:
    """Return the folder with the model of a GGUF file as safetensors, converting the file if that was not done before.

    Raises:
        GradleakError: if the file cannot be read, holds no language model, or a package is missing.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    folder = cache_folder() / "models" / f"{path.stem}-{digest[:16]}"
    if not folder.is_dir():
        _check_readable(path)
        _convert(path, folder)
    return folder


def cache_folder() -> Path:
    """Return gradleak's folder in the user's cache: in `XDG_CACHE_HOME`, or in `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "gradleak"


def _check_readable(path: Path) -> None:
    """Raise a GradleakError unless the file holds a language model of a family that gradleak knows."""
    if any(importlib.util.find_spec(package) is None for package in PACKAGES):
        raise GradleakError("GGUF files are read with two more packages: pip install 'gradleak[gguf]'")
    from gguf import GGUFReader

    try:
        field = GGUFReader(path).get_field("general.architecture")
        architecture = "none" if field is None else str(field.contents())
    except Exception as error:  # the reader raises whatever numpy makes of a broken file
        reason = " ".join(str(error).split())[:120]
        raise GradleakError(f"{path} is no GGUF file that can be read: {reason or type(error).__name__}") from None
    known = sorted(family.gguf for family in FAMILIES.values() if family.gguf is not None)
    if architecture not in known:
        raise GradleakError(
            f"{path} holds no language model that gradleak knows: architecture '{architecture}', "
            f"not one of {', '.join(dict.fromkeys(known))}"
        )


def _convert(path: Path, folder: Path) -> None:
    """Write model and tokenizer into a new folder that appears when it is complete."""
    source, file = path.parent, path.name
    quiet_bars = contextlib.redirect_stderr(
        io.StringIO()
    )  # the conversion draws progress bars that nothing switches off
    with explained(f"model '{path}'"), quiet_bars:
        config = read_config(source, gguf_file=file)
        tokenizer = read_tokenizer(source, gguf_file=file)
        trust = Trust(by_flag=False)
        options = {"config": config, "gguf_file": file, "dtype": torch.float32}
        model = read_model(AutoModelForCausalLM, source, trust, **options)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        except OSError as error:
            raise GradleakError(f"{folder.parent} cannot be written: {error.strerror}") from None
        try:
            _save(model, temporary)
            tokenizer.save_pretrained(temporary)
            _publish(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _save(model: Any, folder: Path) -> None:  # noqa: ANN401
    """Write weights and configuration; Hugging Face refuses to save a model that was read from GGUF."""
    weights = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}  # tied ones once
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes files that only the owner can read
    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)


def _publish(temporary: Path, folder: Path) -> None:
    """Give a complete folder its name; keep what another process may have put there meanwhile."""
    temporary.chmod(0o755)
    try:
        temporary.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise GradleakError(f"{folder} cannot be written: {error.strerror}") from None
