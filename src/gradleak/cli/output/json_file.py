"""The JSON file: what was attacked, how, and what came out; schema 1, whose keys are never renamed."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.errors import GradleakError
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.attacks import Attack
    from gradleak.cli.running import Outcome
    from gradleak.targets import Target

SCHEMA = 1


def attack_record(
    attack: Attack,
    target: Target,
    scenario: dict[str, Any],
    seed: int,
    outcomes: Sequence[Outcome],
    interrupted: bool = False,
) -> dict[str, Any]:
    """Return everything about a run of attacks, ready for JSON."""
    record = {
        "schema": SCHEMA,
        "attack": attack.name,
        "model": target.name,
        "scenario": scenario,
        "seed": seed,
        "batches": [_batch(outcome) for outcome in outcomes],
        "summary": summary(outcomes),
        "settings": asdict(attack),
        "model_hash": target.fingerprint,
        "version": __version__,
    }
    return record | {"interrupted": True} if interrupted else record


def summary(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Return each score averaged over all sentences (None where no truth is known), and the seconds in all.

    `precision` is that of all returned texts together; `surplus` and `unrepresentable` count texts.
    """
    from gradleak.metrics import SCORE_NAMES, share

    batches = [outcome.scores for outcome in outcomes if outcome.scores is not None]
    sentences = [s for scores in batches for s in scores.sentences]
    means: dict[str, float | None] = {
        name: math.fsum(getattr(s, name) for s in sentences) / len(sentences) if sentences else None
        for name in SCORE_NAMES
    }
    return means | {
        "precision": share(sum(s.right for s in batches), sum(s.returned for s in batches)),
        "surplus": sum(s.surplus for s in batches) if batches else None,
        "unrepresentable": sum(len(s.unrepresentable) for s in batches) if batches else None,
        "seconds": math.fsum(outcome.reconstruction.seconds for outcome in outcomes),
    }


def _batch(outcome: Outcome) -> dict[str, Any]:
    found = outcome.reconstruction
    order = outcome.order
    labels = found.labels
    return {
        "reference": None if outcome.references is None else list(outcome.references),
        "reconstruction": [None if i is None else found.texts[i] for i in order],
        "labels": None if labels is None else [None if i is None else labels[i] for i in order],
        "scores": None if outcome.scores is None else outcome.scores.as_record(),
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
    """Write a JSON file in one move: whoever reads it finds the old file or the whole new one."""
    if path is None:
        return
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.absolute().parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private; a result is an ordinary file
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise GradleakError(f"{path} cannot be written: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
