"""What an audit of a running federation puts into its file of rounds (`gradleak.reports.rounds`)."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import Any

from gradleak.monitoring.settings import AuditSettings
from gradleak.targets import Target


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
        "machine": {"platform": platform.platform()},
    }


def failed_record(number: int, client: str, error: str) -> dict[str, Any]:
    """Return the line of a client that could not be looked at."""
    return {"round": number, "client": client, "status": "failed", "error": error, "sentences": [], "at": now()}


def now() -> str:
    """Return the time for a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")
