"""Hashes of the weights behind a model's name, without loading the model; studies use them to find stale records.

A path or a name stays the same while the weights behind it change; a hash of the files does not.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from gradleak.assets import asset_path
from gradleak.errors import GradleakError
from gradleak.targets.loading import model_source
from gradleak.targets.registry import MODELS

WEIGHTS = (".safetensors",)
DESCRIPTIONS = (".json", ".txt", ".model")  # configuration and tokenizer
HUB_SECONDS = 10.0
_CHUNK = 2**20


def weights_hash(name: str, random_weights: bool = False) -> str:
    """Return an identifier of a model's weights and tokenizer that changes when they do.

    For a directory, an installed package and the embedded model it is a SHA-256 of their files; for an architecture
    with weights from the seed, of its configuration and tokenizer; for a hub id, the revision that would be loaded, or
    the id itself if neither the hub nor the local cache knows a revision.

    Args:
        name: as for `load_target`.
        random_weights: weights come from the seed; ignore the checkpoint's.
    """
    suffixes = DESCRIPTIONS if random_weights else WEIGHTS + DESCRIPTIONS
    if name == "tiny":
        return folder_hash(asset_path("tiny"), suffixes)
    if name in MODELS and (random_weights or not MODELS[name].has_checkpoint):
        architecture = json.dumps(dict(MODELS[name].architecture), sort_keys=True)
        return hashlib.sha256(f"{architecture} {folder_hash(asset_path('tiny'), DESCRIPTIONS)}".encode()).hexdigest()
    try:
        source = model_source(name)
    except GradleakError:
        return name  # it cannot be loaded; loading it will say why
    return folder_hash(Path(source), suffixes) if Path(source).is_dir() else _revision(source)


def folder_hash(folder: Path, suffixes: tuple[str, ...] = WEIGHTS + DESCRIPTIONS, *, deep: bool = False) -> str:
    """Return a SHA-256 of the names and contents of a folder's files; with `deep`, also of its subfolders' files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*") if deep else folder.glob("*")):
        if path.suffix in suffixes and path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()} {file_hash(path)}\n".encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Return a SHA-256 of a file's content."""
    state = path.stat()
    return _file_hash(str(path.resolve()), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1024)
def _file_hash(path: str, size: int, changed: int) -> str:
    """Return a SHA-256 of a file's content, cached by size and modification time."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _revision(hub_id: str) -> str:
    """Return the hub's current revision; without network, the one in the local cache."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        revision = HfApi().model_info(hub_id, timeout=HUB_SECONDS).sha
    except Exception:  # huggingface_hub and the network raise many unrelated types
        cached = try_to_load_from_cache(hub_id, "config.json")
        revision = Path(cached).parent.name if isinstance(cached, str) else None
    return f"{hub_id}@{revision}" if revision else hub_id
