"""rounds.jsonl: a header, then one line for each client of each round; `gradleak report` draws it.

The file holds what was read, so it is readable by its owner alone. Lines are appended in one write each: several
processes may do so.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradleak.errors import GradleakError
from gradleak.monitoring.settings import AuditSettings
from gradleak.targets import Target
from gradleak.version import __version__

FILE = "rounds.jsonl"
SCHEMA = 1


def header_of(settings: AuditSettings, target: Target, framework: str, side: str) -> dict[str, Any]:
    """Return the first line of a file of rounds.

    Args:
        settings: of the audit.
        target: the model as the federation starts with it.
        framework: `flower` or `flare`.
        side: `server` or `client`.
    """
    stated = [] if settings.local_dp is None else [f"clients state local differential privacy: {settings.local_dp}"]
    return {
        "gradleak": "rounds",
        "schema": SCHEMA,
        "framework": framework,
        "side": side,
        "model": settings.target,
        "model_hash": target.fingerprint,
        "family": target.family.name,
        "parameters": sum(parameter.numel() for parameter in target.parameters.values()),
        "hidden": int(target.word_embeddings.shape[1]),
        "rank": next((int(module.a_in(target.parameters).shape[0]) for module in target.adapters), None),
        "protocol": settings.protocol,
        "attack": settings.attack,
        "budget": settings.budget,
        "seed": settings.seed,
        "knowledge": [],
        "assumed": stated,
        "not_tested": ["rounds and clients that were not looked at"],
        "version": __version__,
        "machine": {"platform": platform.platform()},
    }


def open_rounds(folder: Path, header: Mapping[str, Any]) -> Path:
    """Make the folder and its file with the header, or continue a file; return its path.

    Raises:
        GradleakError: if it is the file of another audit, or cannot be written.
    """
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size:
            _check_header(path, header)
            return path
    except OSError as error:
        raise GradleakError(f"{folder} cannot be written: {error.strerror}") from None
    append_line(path, header)
    return path


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line, in one write.

    Raises:
        GradleakError: if the file cannot be written.
    """
    content = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise GradleakError(f"{path} cannot be written: {error.strerror}") from None


def failed_record(number: int, client: str, error: str) -> dict[str, Any]:
    """Return the line of a client that could not be looked at."""
    return {"round": number, "client": client, "status": "failed", "error": error, "sentences": [], "at": now()}


def now() -> str:
    """Return the time for a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _check_header(path: Path, header: Mapping[str, Any]) -> None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.readline())
    except ValueError:
        found = {}
    for key in ("gradleak", "framework", "side", "model", "attack"):
        if not isinstance(found, dict) or found.get(key) != header[key]:
            raise GradleakError(f"{path} is of another audit (its {key} differs): give another directory")
