"""A first look at what is audited: the model, the data, and the size of the updates that clients would send."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from gradleak.assessment.request import AuditRequest
from gradleak.assessment.texts import PreparedTexts, prepare, read_texts
from gradleak.audit.scenario import Scenario, TargetSpec, labels_for
from gradleak.audit.threads import is_small, one_thread
from gradleak.data import Dataset, classes_needed
from gradleak.exchange import FACTS, Update
from gradleak.studies.definition.library import Library
from gradleak.targets import Target

LOOKED_AT = 4
"""Updates whose size is measured."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is audited.

    Attributes:
        target: the model, with its number of classes.
        texts: the texts.
        facts: what the record says of the model.
        norm: median L2 norm of the updates, before the user's own defenses.
        example_norm: median L2 norm of the update of one text alone.
        values: entries of an update.
        seconds: of computing one update.
        startup: seconds from the start of the audit to the end of this look.
        small: whether the model is too small for several threads.
    """

    target: TargetSpec
    texts: PreparedTexts
    facts: dict[str, Any]
    norm: float
    example_norm: float
    values: int
    seconds: float
    startup: float = 0.0
    small: bool = False

    @property
    def root(self) -> float:
        """√entries: the norm of noise with standard deviation 1."""
        return math.sqrt(self.values)

    @property
    def can_be_told(self) -> tuple[str, ...]:
        """Every fact that an attacker can be told about updates of this model."""
        classifier = self.facts["task"] == "classification"
        return tuple(fact for fact in FACTS if classifier or fact != "labels")

    def sizes(self) -> dict[str, Any]:
        """Return the measured sizes, which the plan of an audit keeps: a later run must not measure others."""
        return {name: getattr(self, name) for name in SIZES}

    def with_sizes(self, sizes: dict[str, Any]) -> Subject:
        """Return the subject with the sizes that an earlier run has measured."""
        return replace(self, **{name: sizes[name] for name in SIZES})


SIZES = {**dict.fromkeys(("norm", "example_norm", "seconds", "startup"), (int, float)), "values": int}
"""The measured sizes, and their types in the study's file."""


def look(request: AuditRequest, library: Library, began: float) -> Subject:
    """Load model and data, and compute a few updates.

    Args:
        request: what is audited.
        library: datasets and hashes.
        began: when the audit began, by `time.perf_counter`.

    Raises:
        GradleakError: if model or data cannot be read, or do not fit each other.
    """
    found = read_texts(request)
    spec = request.target
    classes = classes_needed(found, request.data.labels)
    if spec.task == "classification" and spec.num_labels is None and classes is not None:
        spec = replace(spec, num_labels=library.trained_classes(spec) or max(2, classes))
    target = spec.load(request.seed, request.device)
    texts = prepare(request, target, found)
    labels_for(target, texts.attacked, request.data.labels)  # raises if labels and classes do not fit each other
    with one_thread() if is_small(target) else nullcontext():
        sent, seconds = _updates(request, target, texts)
        single = sent if request.unit == 1 else _examples(request, target, texts)
    return Subject(
        target=spec,
        texts=texts,
        facts=_facts(target),
        norm=statistics.median(map(norm_of, sent)),
        example_norm=statistics.median(map(norm_of, single)),
        values=sent[0].num_values,
        seconds=seconds,
        startup=time.perf_counter() - began,
        small=is_small(target),
    )


def _updates(request: AuditRequest, target: Target, texts: PreparedTexts) -> tuple[list[Update], float]:
    """Return a few updates, and the seconds that the fastest took: the first one also warms up."""
    data = texts.attacked.take(slice(0, request.unit * min(LOOKED_AT, len(texts.attacked) // request.unit)))
    scenario = Scenario(
        texts=data.texts,
        labels=_classes(request, target, data),
        batch_size=request.batch_size,
        client=replace(request.client, send="fp32"),
        seed=request.seed,
    )
    found: list[Update] = []
    times = [time.perf_counter()]
    for batch in scenario.batches(target):
        found.append(batch.update)
        times.append(time.perf_counter())
    return found, min(after - before for before, after in pairwise(times))


def _examples(request: AuditRequest, target: Target, texts: PreparedTexts) -> list[Update]:
    """Return the updates of a few texts alone, as DP-SGD clips them."""
    data = texts.attacked.take(slice(0, LOOKED_AT))
    client = request.client.client(target, request.seed)
    return list(client.train_alone(data.texts, _classes(request, target, data)))


def _classes(request: AuditRequest, target: Target, data: Dataset) -> tuple[int, ...] | None:
    mapping = labels_for(target, data, request.data.labels)
    return mapping(data) if mapping else None


def norm_of(update: Update) -> float:
    """Return the L2 norm of a whole update."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in update.tensors.values()))


def _facts(target: Target) -> dict[str, Any]:
    adapter = target.adapter
    ranks = [] if adapter is None else [len(target.parameters[module.a]) for module in adapter.modules]
    return {
        "name": target.name,
        "family": target.family.name,
        "parameters": sum(parameter.numel() for parameter in target.parameters.values()),
        "layers": len(target.layers),
        "hidden": int(target.word_embeddings.shape[1]),
        "longest": target.max_length,
        "task": target.task,
        "classes": target.num_labels if target.task == "classification" else None,
        "trained_head": target.trained_head,
        "adapter": None if adapter is None else adapter.in_words,
        "rank": max(ranks, default=None),
        "hash": target.fingerprint,
    }
