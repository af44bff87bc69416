"""What is going to be attacked: updates simulated here, or one captured elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.cli.options.parse import parse_fedavg, parse_whole_numbers
from gradleak.cli.options.scenario import DefendedClient, ModelChoice, PrivateText
from gradleak.cli.output.wording import plural, sizes
from gradleak.errors import GradleakError, unknown_name

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
    text = text.of(target)
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
        *_label_line(target, text),
    )
    scenario = {
        "client": client.as_dict(),
        "defenses": defenses,
        "knowledge": list(first.knowledge.told),
        "batch_size": batch_size,
        "dataset": text.source,
        "labels": text.label_record if target.task == "classification" else None,
        "update": None,
        "update_kind": None,
    }
    return Plan(target, first, jobs, count, first.knowledge.told, overview, scenario)


def _label_line(target: Target, text: PrivateText) -> tuple[tuple[str, str], ...]:
    return (("labels", text.label_words),) if target.task == "classification" else ()


def plan_captured(
    path: Path,
    model: ModelChoice,
    labels: str | None,
    lengths: str | None,
    batch_size: int | None,
    kind: str | None = None,
    fedavg: str | None = None,
) -> Plan:
    """Plan an attack on an update from a file; the attacker knows only what the options say."""
    from gradleak.exchange import Knowledge, Update, settle_kind

    knowledge = Knowledge(
        labels=parse_whole_numbers(labels, "--labels"),
        lengths=parse_whole_numbers(lengths, "--lengths"),
        batch_size=batch_size,
    )
    said = _said_of_kind(kind, fedavg)
    update = Update.load(path)
    if not update.tensors:
        raise GradleakError(f"{path} holds no tensors")
    target = model.load(0, origin=update.origin)
    update, why = settle_kind(update, target, path, **said)
    words = f"FedAvg ({update.steps} steps, lr {update.learning_rate:g})" if update.kind == "difference" else "FedSGD"
    overview = (("update", f"{path}, {words}"), ("kind", f"{update.kind}: {why}"), ("holds", sizes(update)))
    scenario = {
        "client": None,
        "defenses": None,
        "knowledge": list(knowledge.told),
        "batch_size": batch_size,
        "dataset": None,
        "labels": None,
        "update": str(path),
        "update_kind": {"kind": update.kind, "steps": update.steps, "lr": update.learning_rate, "why": why},
    }
    return Plan(target, Job(update, knowledge, None), iter(()), 1, knowledge.told, overview, scenario)


def _said_of_kind(kind: str | None, fedavg: str | None) -> dict[str, Any]:
    """Return what `--kind` and `--fedavg` say of a captured update, as `settle_kind` takes it."""
    kinds = ("gradient", "difference")
    if kind is not None and kind not in kinds:
        raise unknown_name("kind of update", kind, kinds)
    trained = parse_fedavg(fedavg)
    if trained is not None and trained.batch is not None:
        raise GradleakError("batch of --fedavg is for a client simulated here; with --update give steps and lr alone")
    return {
        "kind": kind,
        "steps": None if trained is None else trained.steps,
        "learning_rate": None if trained is None else trained.lr,
    }


def full_overview(
    plan: Plan, attack: Attack, preset: str, seed: int, budget: float | None = None
) -> list[tuple[str, str]]:
    """Return the threat model, the model and the attack, line by line."""
    target = plan.target
    count = sum(parameter.numel() for parameter in target.parameters.values())
    head = "" if target.trained_head else " (new head)"
    task = f"{target.num_labels} classes{head}" if target.task == "classification" else "language model"
    return [
        ("model", f"{target.name}: {target.family.name}, {count:,} parameters, {task}, hash {target.fingerprint[:12]}"),
        *plan.overview,
        ("attack", f"{attack.name}: {attack.paper}"),
        ("preset", _about(preset, attack)),
        ("settings", repr(attack)),
        *(("remark", line) for line in attack.remarks()),
        ("attacker", f"is told {', '.join(plan.told) or 'nothing besides model and update'}"),
        ("run", f"seed {seed}, on {target.device}" + (f", {budget:g} s for each update" if budget else "")),
    ]


def _about(preset: str, attack: Attack) -> str:
    """Return a preset's name, whether it is the default, and whether it is more than the paper's attack."""
    words = f"{preset}, the default" if preset == attack.default_preset() else preset
    beyond = preset == "best" and attack.presets["best"] != attack.presets.get("paper", attack.presets["best"])
    return f"{words}: more than the paper's attack, which is --preset paper" if beyond else words


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
