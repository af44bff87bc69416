"""The work of a cell, wherever it runs: in the driver, in a worker process, on a Ray cluster."""

from __future__ import annotations

import math
import os.path
import platform
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import torch

from gradleak.api import score
from gradleak.attacks import Attack, find_attack
from gradleak.audit.scenario import Case, Scenario, TargetSpec, labels_for
from gradleak.data import Dataset
from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Listener, Reconstruction
from gradleak.metrics import BatchScores
from gradleak.plugins import load_plugins
from gradleak.studies.definition.cells import AttackCell, Cell, UtilityCell
from gradleak.studies.definition.library import Library
from gradleak.studies.records.outcome import BatchRecord, Failure, Outcome, Sentence, UtilityRecord
from gradleak.targets import Target
from gradleak.targets.dropout import set_dropout
from gradleak.version import __version__

TARGETS_KEPT = 2
LONGEST_ERROR = 400
# Values that updates attacked side by side may hold together. Fixed, not read off the machine's free memory, and never
# across cells: rounding depends on who is attacked together, and a study that was interrupted must end with the very
# records of one that was not. Who has memory for more gives cells more batches.
VALUES = {"cpu": 2**28, "cuda": 2**32}


@dataclass(frozen=True)
class Job:
    """A cell with everything that its worker needs but the model: no worker reads a dataset."""

    cell: Cell
    data: Dataset  # what is attacked, or trained on
    test: Dataset | None = None

    @classmethod
    def of(cls, cell: Cell, library: Library) -> Job:
        """Fetch a cell's sentences."""
        if isinstance(cell, UtilityCell):
            return cls(cell, library.get(cell.train), library.get(cell.test))
        assert isinstance(cell, AttackCell)
        return cls(cell, library.get(cell.dataset))

    def anywhere(self) -> Job:
        """Return the job for a worker that may have another current folder."""
        name = self.cell.target.name
        place = os.path.abspath(name) if os.path.isdir(name) else name
        return replace(self, cell=replace(self.cell, target=replace(self.cell.target, name=place)))


class Workshop:
    """Does jobs one after the other, and keeps the models that it used last.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        folder: where modules of plugins may lie; the current folder by default.
    """

    def __init__(self, device: str = "auto", folder: str | None = None) -> None:
        self._device = device
        self._folder = folder
        self._targets: OrderedDict[tuple[TargetSpec, int, float | None], Target] = OrderedDict()

    def run(self, job: Job, listener: Listener | None = None) -> Outcome | Failure:
        """Do a job; whatever goes wrong is told in one line."""
        try:
            load_plugins(self._folder)
            rate = job.cell.client.rate if isinstance(job.cell, AttackCell) else None
            target = self._target(job.cell.target, job.cell.seed, rate)
            started = time.perf_counter()
            found: dict[str, Any] = (
                {"utility": _utility(job, job.cell, target, listener)}
                if isinstance(job.cell, UtilityCell)
                else _attack(job, target, listener)
            )
            return Outcome(
                **found,
                seconds=time.perf_counter() - started,
                version=__version__,
                model_hash=target.fingerprint,
                machine=machine(target.device),
            )
        except Exception as error:
            self._make_room(error)
            return Failure(in_one_line(error), hopeless=isinstance(error, GradleakError))

    def _target(self, spec: TargetSpec, seed: int, dropout: float | None) -> Target:
        key = (spec, seed, dropout)
        if key not in self._targets:
            while len(self._targets) >= TARGETS_KEPT:
                self._targets.popitem(last=False)
            target = spec.load(seed, self._device)
            if dropout is not None:
                set_dropout(target, dropout)
            self._targets[key] = target
        self._targets.move_to_end(key)
        return self._targets[key]

    def _make_room(self, error: Exception) -> None:
        """After an error that memory may have to do with, start the next job with as much of it as there is."""
        if not isinstance(error, GradleakError):
            self._targets.clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _attack(job: Job, target: Target, listener: Listener | None) -> dict[str, Any]:
    cell = job.cell
    assert isinstance(cell, AttackCell)
    attack = find_attack(cell.attack.name).with_settings(cell.attack.preset, cell.attack.texts)
    mapping = labels_for(target, job.data, cell.dataset.labels)
    scenario = Scenario(
        texts=job.data.texts,
        labels=mapping(job.data) if mapping else None,
        batch_size=cell.batch_size,
        client=cell.client,
        defenses=tuple(map(parse_defense, cell.defenses)),
        facts=cell.knowledge,
        seed=cell.seed,
    )
    sentences: list[Sentence] = []
    batches: list[BatchRecord] = []
    attacked = _attacked(attack, target, scenario, cell.seed, listener, cell.attack.budget)
    for number, (case, found) in enumerate(attacked):
        scores = score(found, case.texts)
        sentences += _sentences(number, case, found, scores)
        batches.append(
            BatchRecord(
                batch=number,
                returned=scores.returned,
                exact=scores.right,
                surplus=scores.surplus,
                unrepresentable=len(scores.unrepresentable),
            )
        )
    return {"sentences": tuple(sentences), "batches": tuple(batches)}


def _attacked(
    attack: Attack,
    target: Target,
    scenario: Scenario,
    seed: int,
    listener: Listener | None,
    budget: float | None,
) -> Iterator[tuple[Case, Reconstruction]]:
    """Attack the batches, as many side by side as fit."""
    cases = scenario.cases(target)
    size = scenario.count
    limit = VALUES["cuda" if target.device.type == "cuda" else "cpu"]
    while group := list(islice(cases, 1)):
        size = max(1, min(size, limit // max(1, group[0].update.num_values)))
        group += islice(cases, size - 1)
        updates, knowledge = [case.update for case in group], [case.knowledge for case in group]
        found = attack.many(target, updates, knowledge, seed=seed, listener=listener, budget=budget)
        yield from zip(group, found, strict=True)


def _sentences(number: int, case: Case, found: Reconstruction, scores: BatchScores) -> Iterator[Sentence]:
    for position, (reference, match, scored) in enumerate(
        zip(case.texts, scores.matches, scores.sentences, strict=True)
    ):
        yield Sentence(
            batch=number,
            position=position,
            reference=reference,
            reconstruction=None if match is None else found.texts[match],
            label=None if match is None or found.labels is None else found.labels[match],
            loss=found.loss if math.isfinite(found.loss) else None,
            **scored.as_dict(),
        )


def _utility(job: Job, cell: UtilityCell, target: Target, listener: Listener | None) -> UtilityRecord:
    from gradleak.studies.execution.utility import FineTuning, measure_utility

    assert job.test is not None
    found = measure_utility(
        target,
        *_in_classes(target, cell, job.data, job.test),
        defenses=tuple(map(parse_defense, cell.defenses)),
        training=FineTuning(epochs=cell.epochs, batch_size=cell.batch_size, lr=cell.lr, seed=cell.seed),
        listener=listener,
    )
    return UtilityRecord(**{field.name: _finite(getattr(found, field.name)) for field in fields(UtilityRecord)})


def _in_classes(target: Target, cell: UtilityCell, train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """Return both sets with the target's classes in place of their labels, the same class for the same label."""
    trained = labels_for(target, train, cell.train.labels)
    alike = trained is not None and cell.test.labels is None and trained.covers(test)
    tested = trained if alike else labels_for(target, test, cell.test.labels)
    return (
        replace(train, labels=trained(train)) if trained else train,
        replace(test, labels=tested(test)) if tested else test,
    )


def _finite(value: Any) -> Any:  # noqa: ANN401
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_one_line(error: Exception) -> str:
    """Return an error as one line; one that is not the user's names the place in the code."""
    words = " ".join(str(error).split())
    if isinstance(error, GradleakError):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words}"[:LONGEST_ERROR] + place


def machine(device: torch.device) -> dict[str, Any]:
    """Return what may matter for time and for the last digits of a result."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
