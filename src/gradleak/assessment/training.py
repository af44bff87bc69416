"""The price of defenses: a model trained under each, on a split of the user's data."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gradleak.assessment.plan import TRAINING_BATCH, AuditPlan, utility_obstacle
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.subject import Subject
from gradleak.federation import WireFormat
from gradleak.studies.definition.cells import UtilityCell
from gradleak.studies.definition.library import Library
from gradleak.studies.definition.specs import DataSpec
from gradleak.studies.execution.driver import Session

LR, ADAPTER_LR = 5e-5, 2e-4
"""Learning rates of AdamW for whole models and for adapters, where the user's own training names none."""

LEARNS = 0.02
"""Accuracy above that of always answering the most frequent class, from which on a model has learnt something."""

Defended = tuple[tuple[str, ...], WireFormat | None]


@dataclass
class Trainings:
    """Trains under defenses, and keeps what each costs.

    Attributes:
        request: what is audited.
        subject: model and data.
        plan: epochs and steps.
        library: datasets and hashes.
        session: runs the cells.
        found: utility by defenses and number format.
        errors: why a training failed.
        seconds: of all trainings.
        too_slow: why none was begun; None if one was, or may be.
    """

    request: AuditRequest
    subject: Subject
    plan: AuditPlan
    library: Library
    session: Session
    found: dict[Defended, dict[str, Any]] = field(default_factory=dict)
    errors: dict[Defended, str] = field(default_factory=dict)
    seconds: float = 0.0
    too_slow: str | None = None

    @property
    def possible(self) -> bool:
        """Whether the data allows to say anything, and the model has learnt from it."""
        return bool(self.plan.epochs) and self.obstacle is None

    @property
    def own(self) -> Defended:
        """The user's own setup."""
        return self.request.defenses, None

    @property
    def baseline(self) -> dict[str, Any] | None:
        """The utility of the user's own setup."""
        return self.found.get(self.own)

    @property
    def pace(self) -> float | None:
        """Seconds of a training; None before the first one."""
        return self.seconds / len(self.found) if self.found else None

    @property
    def obstacle(self) -> str | None:
        """Why no utility is said; None if it is."""
        if not self.plan.epochs:
            return utility_obstacle(self.subject)
        if self.too_slow is not None:
            return self.too_slow
        if self.own in self.errors:
            return f"not measured: {self.errors[self.own]}"
        baseline = self.baseline
        if baseline is None or baseline["accuracy"] is None:
            return None
        most = self._majority()
        if baseline["accuracy"] < most + LEARNS:
            return (
                f"not said: after {self.plan.steps} steps the model answers {100 * baseline['accuracy']:.1f} % of "
                f"{baseline['tested']} test texts right, where the most frequent class alone gives {100 * most:.1f} %. "
                "It has learnt nothing that a defense could cost"
            )
        return None

    def loss(self, defended: Defended) -> float | None:
        """Return what a defense costs of accuracy, or adds to perplexity; None if that is not known."""
        utility = self.found.get(defended)
        if utility is None or not self.possible:
            return None
        name, sign = ("perplexity", 1.0) if utility["accuracy"] is None else ("accuracy", -1.0)
        best = (self.baseline or utility)[name]
        return round(max(0.0, sign * (utility[name] - best)), 2)

    def skip(self, left: float) -> None:
        """Put down that there is no time for a training."""
        self.too_slow = (
            f"not measured: a training takes about {self.plan.training:.0f} s, and {max(0.0, left):.0f} s of the "
            "budget were left for it"
        )

    def train(self, defenses: tuple[str, ...], send: WireFormat | None) -> dict[str, Any] | None:
        """Train under these defenses, unless that was done, and return the utility; None if it failed."""
        key = defenses, send
        if key not in self.found and key not in self.errors:
            cell = self._cell(*key)
            summary = self.session.run([cell])
            record, provenance = self.session.store.utility(cell.id), self.session.store.provenance(cell.id)
            if record is None or provenance is None:
                self.errors[key] = next((failed.error for failed in summary.failed), "not measured")
            else:
                self.seconds += provenance[0]
                perplexity = None if record.loss is None or record.accuracy is not None else math.exp(record.loss)
                self.found[key] = {
                    "accuracy": record.accuracy,
                    "mcc": record.mcc,
                    "perplexity": perplexity,
                    "epsilon": record.epsilon,
                    "steps": record.steps,
                    "trained": record.examples,
                    "tested": self.subject.texts.test_size,
                }
        return self.found.get(key)

    def _cell(self, defenses: tuple[str, ...], send: WireFormat | None) -> UtilityCell:
        texts, client = self.subject.texts, self.request.client
        name, count = texts.whole.name, len(texts.whole)
        train = DataSpec(name, f"0:{texts.train_size}", labels=self.request.data.labels)
        test = DataSpec(name, f"{count - texts.test_size}:{count}", labels=self.request.data.labels)
        wire = send or client.send
        return UtilityCell(
            target=self.subject.target,
            defenses=defenses,
            seed=self.request.seed,
            hashes={
                "weights": self.library.weights_hash(self.subject.target),
                "training sentences": self.library.sentences_hash(train),
                "test sentences": self.library.sentences_hash(test),
            },
            train=train,
            test=test,
            epochs=self.plan.epochs,
            batch_size=TRAINING_BATCH,
            lr=self._rate(),
            embeddings=None if self.subject.facts["adapter"] else client.embeddings,
            send=None if wire == "fp32" else wire,
        )

    def _rate(self) -> float:
        fedavg = self.request.client.fedavg
        if fedavg is not None and fedavg.optimizer != "sgd":
            return float(fedavg.lr)
        return ADAPTER_LR if self.subject.facts["adapter"] else LR

    def _majority(self) -> float:
        """Return the share of the most frequent class among the test texts."""
        labels = (self.subject.texts.whole.labels or ())[-self.subject.texts.test_size :]
        return max(Counter(labels).values()) / len(labels) if labels else 0.0

    def record(self) -> dict[str, Any]:
        """Return what audit.json holds of utility as a whole."""
        texts, obstacle = self.subject.texts, self.obstacle
        measured = obstacle is None and self.baseline is not None
        metric = "accuracy" if self.subject.facts["task"] == "classification" else "100 / perplexity"
        note = (
            f"Utility: trained with AdamW on {texts.train_size:,} texts ({self.plan.epochs} epochs, batches of "
            f"{TRAINING_BATCH}, learning rate {self._rate():g}), every step's gradient through the defense, and tested "
            f"on {texts.test_size:,} others."
            if measured
            else f"Utility {obstacle or 'not measured: the budget was spent'}."
        )
        return {"measured": measured, "metric": metric, "note": note, "baseline": self.baseline if measured else None}
