"""What a model's name stands for at this moment, without loading the model.

A path or a name stays while the weights behind it change; a hash of the files tells the two apart.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from gradleak.assets import asset_path
from gradleak.errors import GradleakError
from gradleak.targets.loading import _source
from gradleak.targets.registry import MODELS

WEIGHTS = (".safetensors",)
DESCRIPTIONS = (".json", ".txt", ".model")  # configuration and tokenizer
HUB_SECONDS = 10.0
_CHUNK = 2**20


def weights_hash(name: str, random_weights: bool = False) -> str:
    """Return what tells a model's weights and tokenizer from others under the same name.

    For a directory, an installed package and the embedded model it is a SHA-256 of their files; for an architecture
    with weights from the seed, of its configuration and tokenizer; for a hub id, the revision that would be loaded. A
    hub id of which neither the hub nor the local cache knows a revision stands for itself.

    Args:
        name: as for `load_target`.
        random_weights: the checkpoint's weights are not read.
    """
    suffixes = DESCRIPTIONS if random_weights else WEIGHTS + DESCRIPTIONS
    if name == "tiny":
        return folder_hash(asset_path("tiny"), suffixes)
    if name in MODELS and (random_weights or not MODELS[name].has_checkpoint):
        architecture = json.dumps(dict(MODELS[name].architecture), sort_keys=True)
        return hashlib.sha256(f"{architecture} {folder_hash(asset_path('tiny'), DESCRIPTIONS)}".encode()).hexdigest()
    try:
        source = _source(name)
    except GradleakError:
        return name  # it cannot be loaded; the cell will say why
    return folder_hash(Path(source), suffixes) if Path(source).is_dir() else _revision(source)


def folder_hash(folder: Path, suffixes: tuple[str, ...] = WEIGHTS + DESCRIPTIONS, *, deep: bool = False) -> str:
    """Return a SHA-256 of the names and contents of a folder's files; with `deep` those of its subfolders, too."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*") if deep else folder.glob("*")):
        if path.suffix in suffixes and path.is_file():
            state = path.stat()
            content = _file_hash(str(path.resolve()), state.st_size, state.st_mtime_ns)
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def _file_hash(path: str, size: int, changed: int) -> str:
    """Hash a file's content, once for every size and time of change."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise GradleakError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _revision(hub_id: str) -> str:
    """Return the revision that the hub has now; out of its reach, the one in the local cache."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        revision = HfApi().model_info(hub_id, timeout=HUB_SECONDS).sha
    except Exception:  # the package and the network raise whatever they like
        cached = try_to_load_from_cache(hub_id, "config.json")
        revision = Path(cached).parent.name if isinstance(cached, str) else None
    return f"{hub_id}@{revision}" if revision else hub_id
