"""The plan: how many sentences and seconds for each update a budget allows, and the least that is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradleak.assessment.ladders import Ladder
from gradleak.assessment.request import AuditRequest
from gradleak.assessment.subject import Subject
from gradleak.errors import GradleakError

UPDATES = 60
"""Updates that a budget is spread over: those that a defense hides take all the time they are given."""

SHORTEST, LONGEST = 2.0, 60.0
"""Seconds for one update: less than the shortest tells nothing, more than the longest adds little."""

PATIENCE, PATIENT, IMPATIENT = 4.0, 20.0, 0.1
"""Where text is usually read at once, an update gets so many times the time and at least so many seconds, since a busy
machine must not pass for a defense; but no larger share of the budget, which is for many."""

SAMPLE, PROBE = 16, 2
"""Sentences of the own setup, and of each strength that is tried on the way to where leakage ends."""

UTILITY_SHARE = 0.25
LEAST_UPDATES = 10
STARTUP = 3.0
"""Seconds until the interpreter runs, and for drawing the page."""


@dataclass(frozen=True)
class AuditPlan:
    """What an audit is going to do.

    Attributes:
        seconds: time for each update under a defense that usually takes all the time there is.
        patience: time for each other update, which is usually read long before.
        sample: sentences of the own setup.
        probe: sentences of each strength on the way.
        sizes: doubled batch sizes, in order.
        epochs: passes over the training texts; 0 if utility cannot be measured.
        steps: training steps.
        training: estimated seconds of one training.
    """

    seconds: float
    patience: float
    sample: int
    probe: int
    sizes: tuple[int, ...]
    epochs: int
    steps: int
    training: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for the study's file."""
        return asdict(self) | {"sizes": list(self.sizes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> AuditPlan:
        """Return the plan that an earlier run made."""
        return cls(**{name: values[name] for name in PLAN} | {"sizes": tuple(values["sizes"])})


PLAN = {
    **dict.fromkeys(("seconds", "patience", "training"), (int, float)),
    **dict.fromkeys(("sample", "probe", "epochs", "steps"), int),
    "sizes": [int],
}
"""Types in the plan of an earlier run."""


def make_plan(request: AuditRequest, subject: Subject) -> AuditPlan:
    """Plan an audit within its budget.

    Raises:
        GradleakError: if the budget is too small for anything; it says the least.
    """
    least = least_budget(subject)
    if request.budget < least:
        raise GradleakError(
            f"--budget {request.budget:g}s is too small: an audit of this model needs at least {least:.0f}s, "
            f"{LEAST_UPDATES} updates of {max(SHORTEST, 4 * subject.seconds):.0f} s each"
        )
    seconds = min(LONGEST, max(SHORTEST, request.budget / UPDATES, 4 * subject.seconds))
    available = len(subject.texts.attacked)
    unit = request.unit
    sample = max(1, min(SAMPLE, available) // unit) * unit
    probe = max(1, PROBE // unit) * unit
    epochs = _epochs(subject)
    steps = epochs * (subject.texts.train_size // TRAINING_BATCH) if epochs else 0
    return AuditPlan(
        seconds=round(seconds, 1),
        patience=round(max(seconds, min(max(PATIENT, PATIENCE * seconds), IMPATIENT * request.budget)), 1),
        sample=sample,
        probe=min(probe, sample),
        sizes=_sizes(request, available),
        epochs=epochs,
        steps=steps,
        training=round(steps * STEP * subject.seconds, 1),
    )


TRAINING_BATCH, STEP = 16, 4.0
"""Texts of a training step, and how many times as long it takes as the update of one text."""


def _epochs(subject: Subject) -> int:
    """Return passes over the training texts: at least two, and about 150 steps; 0 if there are too few tests."""
    if not subject.texts.test_size:
        return 0
    if subject.facts["task"] == "classification" and subject.texts.whole.labels is None:
        return 0
    return max(2, min(10, round(150 * TRAINING_BATCH / subject.texts.train_size)))


def _sizes(request: AuditRequest, available: int) -> tuple[int, ...]:
    """Return batch sizes 1, 2, 4, … that the data allows, without the own one."""
    fedavg = request.client.fedavg
    fewest = fedavg.batch or 1 if fedavg is not None else 1
    most = available // request.client.clients
    doubled = [1 << power for power in range(20) if (1 << power) <= most]
    return tuple(size for size in doubled if size != request.batch_size and size >= fewest)


def least_budget(subject: Subject) -> float:
    """Return the seconds below which an audit can say nothing."""
    return STARTUP + LEAST_UPDATES * max(SHORTEST, 4 * subject.seconds)


def describe(
    request: AuditRequest, subject: Subject, plan: AuditPlan, every: Sequence[Ladder]
) -> list[tuple[str, str]]:
    """Return the plan and the threat model line by line, for the screen."""
    facts, texts = subject.facts, subject.texts
    lengths = sorted(texts.lengths)
    classes = f", {facts['classes']} classes" if facts["classes"] else ""
    notes = [f"{texts.skipped} rows without text or label skipped"] if texts.skipped else []
    notes += [f"{texts.cut} cut to {facts['longest']} tokens"] if texts.cut else []
    notes += [f"{texts.dropped} too short to train on"] if texts.dropped else []
    known = ", ".join(request.facts) or "nothing besides model, update and how clients train"
    tested = (
        f"{texts.train_size} texts to train on, {texts.test_size} to test, {plan.epochs} epochs"
        if plan.epochs
        else utility_obstacle(subject)
    )
    return [
        ("model", f"{facts['name']}: {facts['family']}, {facts['parameters']:,} parameters{classes}, {facts['task']}"),
        *([("adapter", str(facts["adapter"]))] if facts["adapter"] else []),
        ("data", "; ".join([f"{texts.rows} rows of {request.data.name}", *notes])),
        ("lengths", f"{lengths[0]} to {lengths[-1]} tokens, half of them up to {lengths[len(lengths) // 2]}"),
        ("client", f"{request.client}, batches of {request.batch_size}"),
        ("defenses", ", ".join(request.defenses) or "none"),
        ("update", f"{subject.values:,} values, norm {subject.norm:.3g}, {subject.seconds:.2g} s to compute"),
        ("attacker", f"sees each update; is told {known}"),
        (
            "attack",
            f"{request.attack}, up to {plan.patience:g} s for each update, {plan.seconds:g} s under noise or pruning",
        ),
        ("own setup", f"{plan.sample} sentences"),
        ("batch sizes", f"{', '.join(map(str, plan.sizes)) or 'no others: too little data'}, until nothing comes back"),
        ("tried", f"{', '.join(ladder.title for ladder in every)}; where leakage ends is found by bisection"),
        ("utility", tested),
        ("estimate", f"at most {request.budget / 60:.1f} minutes (--budget), less if text is read quickly"),
    ]


def utility_obstacle(subject: Subject) -> str:
    """Return why utility cannot be measured."""
    if not subject.texts.test_size:
        return (
            f"not measured: {len(subject.texts.whole)} texts leave fewer than 100 to test on beside those to train on, "
            "and a figure from fewer would be chance"
        )
    return "not measured: the data has no labels to train a classifier on"
