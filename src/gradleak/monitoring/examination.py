"""Attack one client's update of a running federation, and put down what was read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.api import attack, score
from gradleak.errors import GradleakError
from gradleak.exchange import Reconstruction, Update, fitted, named_tensors
from gradleak.exchange.names import plain_names
from gradleak.metrics import BatchScores
from gradleak.monitoring.local_dp import LocalDp
from gradleak.monitoring.records import now
from gradleak.monitoring.settings import AuditSettings
from gradleak.targets import Target


def place_weights(target: Target, weights: Mapping[str, Tensor]) -> None:
    """Set the target's parameters to those that the server sent; what it did not send stays.

    Raises:
        GradleakError: for a name or a shape that is not the target's.
    """
    with torch.no_grad():
        for name, tensor in fitted(weights, target).items():
            parameter = target.parameters[name]
            parameter.copy_(tensor.to(parameter.dtype))


def check_shapes(target: Target, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise a GradleakError unless arrays of these names and shapes are weights of the target."""
    if not shapes:
        raise GradleakError("the federation's arrays are empty: there is nothing to audit")
    fitted(plain_names({name: torch.empty(tuple(shape), device="meta") for name, shape in shapes.items()}), target)


def examine_update(
    target: Target,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    settings: AuditSettings,
    *,
    texts: Sequence[str] | None = None,
    clients: int = 1,
) -> dict[str, Any]:
    """Attack the update that turned the server's weights into the client's, and return a record of what was read.

    The target's weights are set to the server's.

    Args:
        target: the model, as `settings` names it.
        before: what the server sent.
        after: what the client sent back.
        settings: protocol, attack and budget.
        texts: the texts that the client trained on, to score against; None if they are not known.
        clients: the number of clients whose mean was sent.

    Raises:
        GradleakError: if the weights do not fit the model or each other, or the attack cannot be run.
    """
    started = time.monotonic()
    old, new = named_tensors(before, "what the server sent"), named_tensors(after, "the reply")
    place_weights(target, old)
    update = Update.from_weights(old, new, protocol=settings.stated, target=target)
    if clients > 1:
        tensors = {name: tensor * clients for name, tensor in update.tensors.items()}
        update = Update(
            tensors,
            update.kind,
            origin=update.origin,
            training=update.training,
            precision=update.precision,
            send=update.send,
            clients=clients,
        )
    found = attack(settings.attack, target, update, seed=settings.seed, budget=settings.budget)
    return {
        "status": "done",
        "error": None,
        "sentences": sentences_of(found, texts),
        "verified": found.verified,
        "verdict": found.verdict,
        "notes": list(found.notes),
        "norm": float(sum(float(t.double().square().sum()) for t in update.tensors.values()) ** 0.5),
        **_privacy(settings, old, new),
        "seconds": round(time.monotonic() - started, 3),
        "at": now(),
    }


def sentences_of(found: Reconstruction, texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return what was read, sentence by sentence; with the truth first if it is known."""
    scores = None if texts is None else score(found, texts)
    if texts is None or scores is None:
        return [{"reference": None, "reconstruction": text, "scores": None} for text in found.texts]
    surplus = [index for index in range(len(found.texts)) if index not in scores.matches]
    return [
        *(_scored(text, found, scores, place) for place, text in enumerate(texts)),
        *({"reference": None, "reconstruction": found.texts[index], "scores": None} for index in surplus),
    ]


def _scored(text: str, found: Reconstruction, scores: BatchScores, place: int) -> dict[str, Any]:
    index = scores.matches[place]
    return {
        "reference": text,
        "reconstruction": None if index is None else found.texts[index],
        "scores": scores.sentences[place].as_dict(),
    }


def mean_scores(record: Mapping[str, Any]) -> dict[str, float]:
    """Return each score of a record averaged over the sentences whose truth is known; empty if none is."""
    known = [sentence["scores"] for sentence in record["sentences"] if sentence["scores"] is not None]
    return {name: sum(scores[name] for scores in known) / len(known) for name in (known[0] if known else ())}


def summary_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without its words, for logs and metrics."""
    texts = [sentence["reconstruction"] or "" for sentence in record["sentences"]]
    kept = ("round", "client", "status", "error", "seconds", "warnings")
    return {
        **{key: record.get(key) for key in kept},
        "verified": bool(record.get("verified")),
        "read": sum(bool(text) for text in texts),
        "words": sum(len(text.split()) for text in texts),
    }


def _privacy(settings: AuditSettings, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what a stated local differential privacy is worth for this update."""
    if settings.local_dp is None:
        return {"warnings": [], "epsilon": None}
    stated = LocalDp.read(settings.local_dp)
    arrival = stated.arrival({name: new[name].float() - old[name].float() for name in old if name in new})
    warnings = [line for line in (stated.warning,) if line]
    if arrival is not None and not arrival[0]:
        return {"warnings": [*warnings, arrival[1]], "epsilon": None}
    measured = {} if arrival is None else {"noise": arrival[1]}
    return {"warnings": warnings, "epsilon": round(stated.real_epsilon, 3), **measured}
