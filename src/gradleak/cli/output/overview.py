"""The overview before a run: the threat model, the model and the attack, for the screen and for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.cli.output.wording import plural, sizes

if TYPE_CHECKING:
    from gradleak.attacks import Attack
    from gradleak.audit.run import AttackPlan
    from gradleak.audit.scenario import CapturedBatch
    from gradleak.cli.options.scenario import DefendedClient, PrivateText
    from gradleak.exchange import Update
    from gradleak.targets import Target

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class PlanDescription:
    """What is attacked, in words and as a record.

    Attributes:
        rows: lines of the overview on the client or the captured update.
        record: the same for JSON, under `scenario`.
        known: names of the facts that the attacker knows.
        preset: the name of the attack's preset.
    """

    rows: Rows
    record: dict[str, Any]
    known: tuple[str, ...]
    preset: str


def describe_simulation(
    plan: AttackPlan, text: PrivateText, client: DefendedClient, batch_size: int, preset: str
) -> PlanDescription:
    """Describe a plan that attacks the updates of a simulated client."""
    first = plan.first()
    classifier = plan.target.task == "classification"
    defenses = [str(defense) for defense in client.defenses]
    sentences = f"{plural(len(text.texts), 'sentence')} in {plural(plan.count, 'batch')}"
    rows = (
        ("client", str(client)),
        ("sends", sizes(first.update)),
        ("defenses", ", ".join(defenses) or "none"),
        ("text", f"{sentences}, {text.source or 'as given'}"),
        *((("labels", text.label_words),) if classifier else ()),
    )
    record = {
        "client": client.as_dict(),
        "defenses": defenses,
        "knowledge": list(first.knowledge.told),
        "batch_size": batch_size,
        "dataset": text.source,
        "labels": text.label_record if classifier else None,
        "update": None,
        "update_kind": None,
    }
    return PlanDescription(rows, record, first.knowledge.told, preset)


def describe_captured(
    batch: CapturedBatch, path: Path, reason: str, batch_size: int | None, preset: str
) -> PlanDescription:
    """Describe a plan that attacks an update from a file; `reason` says how its kind was determined."""
    update, known = batch.update, batch.knowledge.told
    words = protocol_words(update)
    rows = (("update", f"{path}, {words}"), ("kind", f"{update.kind}: {reason}"), ("holds", sizes(update)))
    record = {
        "client": None,
        "defenses": None,
        "knowledge": list(known),
        "batch_size": batch_size,
        "dataset": None,
        "labels": None,
        "update": str(path),
        "update_kind": {
            "kind": update.kind,
            "steps": update.steps,
            "lr": update.learning_rate,
            "why": reason,
            **update.further_protocol(),
        },
    }
    return PlanDescription(rows, record, known, preset)


def protocol_words(update: Update) -> str:
    """Return the public protocol of an update, in words."""
    words = "FedSGD" if update.training is None else update.training.in_words
    words += "" if update.precision == "fp32" else f", trained in {update.precision}"
    words += "" if update.send == "fp32" else f", sent as {update.send}"
    words += "" if update.clients == 1 else f", sum over {update.clients} clients"
    return words


def overview(plan: AttackPlan, description: PlanDescription) -> list[tuple[str, str]]:
    """Return the threat model, the model and the attack, line by line."""
    target, attack = plan.target, plan.attack
    count = sum(parameter.numel() for parameter in target.parameters.values())
    head = "" if target.trained_head else " (new head)"
    task = f"{target.num_labels} classes{head}" if target.task == "classification" else "language model"
    return [
        ("model", f"{target.name}: {target.family.name}, {count:,} parameters, {task}, hash {target.fingerprint[:12]}"),
        *((("adapter", target.adapter.in_words),) if target.adapter else ()),
        *description.rows,
        ("attack", f"{attack.name}: {attack.paper}"),
        ("preset", _preset_words(description.preset, attack)),
        ("settings", repr(attack)),
        *(("remark", line) for line in attack.remarks()),
        ("attacker", f"is told {', '.join(description.known) or 'nothing besides model and update'}"),
        (
            "run",
            f"seed {plan.seed}, on {target.device}" + (f", {plan.budget:g} s for each update" if plan.budget else ""),
        ),
    ]


def scenario_record(plan: AttackPlan, description: PlanDescription) -> dict[str, Any]:
    """Return the scenario for JSON."""
    target = plan.target
    record = description.record | {
        "preset": description.preset,
        "task": target.task,
        "num_labels": target.num_labels,
        "head_seed": target.seed,
        "device": target.device.type,
    }
    record |= adapter_record(target)
    return record if plan.budget is None else record | {"budget": plan.budget}


def adapter_record(target: Target) -> dict[str, Any]:
    """Return the adapter of a target for JSON: the settings of a fresh one, or the directory; empty without one."""
    adapter = target.adapter
    if adapter is None:
        return {}
    return {"lora": adapter.lora.as_dict()} if adapter.lora else {"adapter": str(adapter.folder)}


def _preset_words(preset: str, attack: Attack) -> str:
    """Return a preset's name, whether it is the default, and whether it goes beyond the paper's attack."""
    words = f"{preset}, the default" if preset == attack.default_preset() else preset
    beyond = preset == "best" and attack.presets["best"] != attack.presets.get("paper", attack.presets["best"])
    return f"{words}: more than the paper's attack, which is --preset paper" if beyond else words
