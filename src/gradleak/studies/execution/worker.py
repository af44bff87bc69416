"""Run one cell of a study: load its model, attack or train, and return the records.

Used by every executor: in the driver's process, in worker processes and on a Ray cluster.
"""

from __future__ import annotations

import math
import os.path
import platform
import time
import traceback
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from gradleak.attacks import find_attack
from gradleak.audit.run import AttackPlan, BatchResult, run_plan
from gradleak.audit.scenario import Scenario, TargetSpec, labels_for
from gradleak.data import Dataset
from gradleak.defenses import parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Listener
from gradleak.plugins import load_plugins
from gradleak.studies.definition.cells import AttackCell, Cell, ImageCell, UtilityCell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.specs import ImageModelSpec
from gradleak.studies.records.outcome import BatchRecord, Failure, Outcome, Sentence, UtilityRecord
from gradleak.targets import Target
from gradleak.targets.dropout import set_dropout
from gradleak.version import __version__
from gradleak.vision.data import ImageSet
from gradleak.vision.target import ImageTarget

TARGETS_KEPT = 2
LONGEST_ERROR = 400


@dataclass(frozen=True)
class Job:
    """A cell with all data that its worker needs; workers load models, but read no datasets."""

    cell: Cell
    data: Dataset | ImageSet  # the sentences to attack or to train on, or the images to attack
    test: Dataset | None = None

    @classmethod
    def of(cls, cell: Cell, library: Library) -> Job:
        """Return the job of a cell, with its sentences or images from the library."""
        if isinstance(cell, UtilityCell):
            return cls(cell, library.get(cell.train), library.get(cell.test))
        if isinstance(cell, ImageCell):
            return cls(cell, library.images(cell.dataset))
        assert isinstance(cell, AttackCell)
        return cls(cell, library.get(cell.dataset))

    def anywhere(self) -> Job:
        """Return the job with absolute paths of model and adapter, for a worker whose current folder may differ."""
        if isinstance(self.cell, ImageCell):
            return self  # image models have names, not folders
        spec = self.cell.target
        assert isinstance(spec, TargetSpec)
        place = os.path.abspath(spec.name) if os.path.isdir(spec.name) else spec.name
        adapter = None if spec.adapter is None else os.path.abspath(os.path.expanduser(spec.adapter))
        return replace(self, cell=replace(self.cell, target=replace(spec, name=place, adapter=adapter)))


class JobRunner:
    """Runs jobs one after the other and caches the models used last.

    Args:
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        folder: folder that is searched last for plugin modules; the current one by default.
    """

    def __init__(self, device: str = "auto", folder: str | None = None) -> None:
        self._device = device
        self._folder = folder
        self._targets: OrderedDict[tuple[TargetSpec, int, float | None], Target] = OrderedDict()

    def run(self, job: Job, listener: Listener | None = None) -> Outcome | Failure:
        """Run a job; any error is returned as a one-line failure."""
        try:
            load_plugins(self._folder)
            target = self._load(job.cell)
            started = time.perf_counter()
            found = _found(job, target, listener)
            return Outcome(
                **found,
                seconds=time.perf_counter() - started,
                version=__version__,
                model_hash=target.fingerprint,
                machine=machine(target.device),
            )
        except Exception as error:
            self._free_memory(error)
            return Failure(in_one_line(error), hopeless=isinstance(error, GradleakError))

    def _load(self, cell: Cell) -> Target | ImageTarget:
        if isinstance(cell.target, ImageModelSpec):
            return cell.target.load(self._device)
        rate = cell.client.rate if isinstance(cell, AttackCell) else None
        return self._target(cell.target, cell.seed, rate)

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

    def _free_memory(self, error: Exception) -> None:
        """Drop cached models after an error that may be due to lack of memory."""
        if not isinstance(error, GradleakError):
            self._targets.clear()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _found(job: Job, target: Target | ImageTarget, listener: Listener | None) -> dict[str, Any]:
    """Return the part of a job's outcome that its kind of cell has."""
    cell, data = job.cell, job.data
    if isinstance(target, ImageTarget):
        from gradleak.studies.execution.image_attack import attack_images

        assert isinstance(cell, ImageCell)
        assert isinstance(data, ImageSet)
        return {"images": attack_images(cell, target, data, listener)}
    assert isinstance(data, Dataset)
    if isinstance(cell, UtilityCell):
        return {"utility": _utility(job, cell, target, data, listener)}
    assert isinstance(cell, AttackCell)
    return _attack(cell, target, data, listener)


def _attack(cell: AttackCell, target: Target, data: Dataset, listener: Listener | None) -> dict[str, Any]:
    attack = find_attack(cell.attack.name).with_settings(cell.attack.preset, cell.attack.texts)
    mapping = labels_for(target, data, cell.dataset.labels)
    scenario = Scenario(
        texts=data.texts,
        labels=mapping(data) if mapping else None,
        batch_size=cell.batch_size,
        client=cell.client,
        defenses=tuple(map(parse_defense, cell.defenses)),
        facts=cell.knowledge,
        seed=cell.seed,
    )
    plan = AttackPlan.simulate(attack, target, scenario, seed=cell.seed, budget=cell.attack.budget)
    sentences: list[Sentence] = []
    batches: list[BatchRecord] = []
    # A cell is one group unless its updates are too large together; `batches_per_cell` of the study makes it larger. No
    # group spans cells, and the worker's number of threads stays: both affect rounding, and results must not depend on
    # how a study was interrupted and resumed.
    for group in run_plan(plan, lambda _: nullcontext(listener), max_group=plan.count):
        for result in group:
            sentences += _sentences(len(batches), result)
            batches.append(_batch(len(batches), result))
    return {"sentences": tuple(sentences), "batches": tuple(batches)}


def _batch(number: int, result: BatchResult) -> BatchRecord:
    scores = result.scores
    assert scores is not None  # a study simulates its clients, so the private texts are known
    return BatchRecord(
        batch=number,
        returned=scores.returned,
        exact=scores.right,
        surplus=scores.surplus,
        unrepresentable=len(scores.unrepresentable),
    )


def _sentences(number: int, result: BatchResult) -> Iterator[Sentence]:
    found, scores, references = result.reconstruction, result.scores, result.references
    assert scores is not None
    assert references is not None
    for position, (reference, match, scored) in enumerate(
        zip(references, scores.matches, scores.sentences, strict=True)
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


def _utility(job: Job, cell: UtilityCell, target: Target, train: Dataset, listener: Listener | None) -> UtilityRecord:
    from gradleak.studies.execution.utility import FineTuning, measure_utility

    assert job.test is not None
    found = measure_utility(
        target,
        *with_classes(target, cell, train, job.test),
        defenses=tuple(map(parse_defense, cell.defenses)),
        training=FineTuning(
            epochs=cell.epochs,
            batch_size=cell.batch_size,
            lr=cell.lr,
            embeddings=cell.embeddings or ("trained" if target.adapter is None else "frozen"),
            send=cell.send or "fp32",
            seed=cell.seed,
        ),
        listener=listener,
    )
    return UtilityRecord(**{field.name: _finite(getattr(found, field.name)) for field in fields(UtilityRecord)})


def with_classes(target: Target, cell: UtilityCell, train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """Return both datasets with labels mapped to the target's classes, one label to one class in both."""
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
    """Return an error as one line; one that is not the user's mistake names the line of code."""
    words = " ".join(str(error).split())
    if isinstance(error, GradleakError):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {words}"[:LONGEST_ERROR] + place


def machine(device: torch.device) -> dict[str, Any]:
    """Return facts about the machine that affect run time and rounding."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
