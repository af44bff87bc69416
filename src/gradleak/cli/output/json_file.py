"""JSON files of results: schema 1, whose keys are never renamed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.cli.output.overview import PlanDescription, scenario_record
from gradleak.files import write_atomically
from gradleak.printable import escaped_json
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.audit.run import AttackPlan, BatchResult

SCHEMA = 1


def attack_record(
    plan: AttackPlan, description: PlanDescription, results: Sequence[BatchResult], *, interrupted: bool = False
) -> dict[str, Any]:
    """Return everything about a run of an attack, ready for JSON."""
    from gradleak.audit.run import mean_scores

    record = {
        "schema": SCHEMA,
        "attack": plan.attack.name,
        "model": plan.target.name,
        "scenario": scenario_record(plan, description),
        "seed": plan.seed,
        "batches": [_batch_record(result) for result in results],
        "summary": mean_scores(results),
        "settings": asdict(plan.attack),
        "model_hash": plan.target.fingerprint,
        "version": __version__,
    }
    return record | {"interrupted": True} if interrupted else record


def _batch_record(result: BatchResult) -> dict[str, Any]:
    found = result.reconstruction
    order = result.order
    labels = found.labels
    return {
        "reference": None if result.references is None else list(result.references),
        "reconstruction": [None if i is None else found.texts[i] for i in order],
        "labels": None if labels is None else [None if i is None else labels[i] for i in order],
        "scores": None if result.scores is None else result.scores.as_record(),
        "loss": found.loss if math.isfinite(found.loss) else None,  # JSON has no NaN
        "seconds": found.seconds,
        "notes": list(found.notes),
        "verified": found.verified,
        "complete": found.complete,
        "labels_verified": found.labels_verified,
        "copies": [None if i is None else found.copies[i] for i in order],
        "verdict": found.verdict,
        "not_tested": list(found.not_tested),
        "next_steps": list(found.next_steps),
    }


def write_json(path: Path | None, content: object) -> None:
    """Write a JSON file atomically, or to standard output for `-`; do nothing without a path."""
    if path is None:
        return
    text = escaped_json(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
