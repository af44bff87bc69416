"""What is going to be attacked: updates simulated here, or one captured elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.cli.parsing import parse_whole_numbers
from gradleak.cli.scenario import DefendedClient, ModelChoice, PrivateText
from gradleak.cli.words import plural, sizes
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from gradleak.attacks import Attack
    from gradleak.exchange import Knowledge, Update
    from gradleak.targets import Target


@dataclass(frozen=True)
class Job:
    """One update to attack, and the truth where it is known."""

    update: Update
    knowledge: Knowledge
    references: tuple[str, ...] | None


@dataclass(frozen=True)
class Plan:
    """Everything that is settled before an attack starts.

    Attributes:
        target: the model.
        first: the first job, made at once so that what does not fit shows before anything else.
        rest: the other jobs, made when they are needed: updates are large.
        count: number of jobs.
        told: names of the facts that the attacker knows.
        overview: what to print, line by line.
        scenario: the same for JSON.
    """

    target: Target
    first: Job
    rest: Iterator[Job]
    count: int
    told: tuple[str, ...]
    overview: tuple[tuple[str, str], ...]
    scenario: dict[str, Any]

    @property
    def jobs(self) -> Iterator[Job]:
        """All jobs, once."""
        return chain([self.first], self.rest)


def plan_simulation(
    target: Target, text: PrivateText, client: DefendedClient, batch_size: int, facts: Sequence[str], seed: int
) -> Plan:
    """Plan attacks on the updates of a client that is simulated here."""
    threat = client.scenario(text, batch_size, facts, seed)
    jobs = (Job(case.update, case.knowledge, case.texts) for case in threat.cases(target))
    first = next(jobs)
    count = threat.count
    defenses = [str(defense) for defense in client.defenses]
    overview = (
        ("client", str(client)),
        ("sends", sizes(first.update)),
        ("defenses", ", ".join(defenses) or "none"),
        ("text", f"{plural(len(text.texts), 'sentence')} in {plural(count, 'batch')}, {text.source or 'as given'}"),
    )
    scenario = {
        "client": client.as_dict(),
        "defenses": defenses,
        "knowledge": list(first.knowledge.told),
        "batch_size": batch_size,
        "dataset": text.source,
        "update": None,
    }
    return Plan(target, first, jobs, count, first.knowledge.told, overview, scenario)


def plan_captured(
    path: Path, model: ModelChoice, labels: str | None, lengths: str | None, batch_size: int | None, seed: int
) -> Plan:
    """Plan an attack on an update from a file; the attacker knows only what the options say."""
    from gradleak.exchange import Knowledge, Update

    knowledge = Knowledge(
        labels=parse_whole_numbers(labels, "--labels"),
        lengths=parse_whole_numbers(lengths, "--lengths"),
        batch_size=batch_size,
    )
    update = Update.load(path)
    if not update.tensors:
        raise GradleakError(f"{path} holds no tensors")
    target = model.load(seed, origin=update.origin)
    kind = f"FedAvg ({update.steps} steps, lr {update.learning_rate:g})" if update.kind == "difference" else "FedSGD"
    overview = (("update", f"{path}, {kind}"), ("holds", sizes(update)))
    scenario = {
        "client": None,
        "defenses": None,
        "knowledge": list(knowledge.told),
        "batch_size": batch_size,
        "dataset": None,
        "update": str(path),
    }
    return Plan(target, Job(update, knowledge, None), iter(()), 1, knowledge.told, overview, scenario)


def full_overview(
    plan: Plan, attack: Attack, preset: str, seed: int, budget: float | None = None
) -> list[tuple[str, str]]:
    """Return the threat model, the model and the attack, line by line."""
    target = plan.target
    count = sum(parameter.numel() for parameter in target.parameters.values())
    task = f"{target.num_labels} classes" if target.task == "classification" else "language model"
    return [
        ("model", f"{target.name}: {target.family.name}, {count:,} parameters, {task}, hash {target.fingerprint[:12]}"),
        *plan.overview,
        ("attack", f"{attack.name}: {attack.paper}"),
        (preset, repr(attack)),
        ("attacker", f"is told {', '.join(plan.told) or 'nothing besides model and update'}"),
        ("run", f"seed {seed}, on {target.device}" + (f", {budget:g} s for each update" if budget else "")),
    ]


def full_scenario(plan: Plan, preset: str) -> dict[str, Any]:
    """Return the scenario for JSON."""
    target = plan.target
    return plan.scenario | {
        "preset": preset,
        "task": target.task,
        "num_labels": target.num_labels,
        "head_seed": target.seed,
        "device": target.device.type,
    }
