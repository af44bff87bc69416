"""From options to an attack plan and its description; used by `gradleak attack` and `gradleak demo`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.cli.options.attack import AttackChoice, ChosenAttack
from gradleak.cli.options.parse import parse_fedavg, parse_whole_numbers
from gradleak.cli.options.scenario import DefendedClient, ModelChoice, PrivateText, TextChoice
from gradleak.cli.output.overview import PlanDescription, describe_captured, describe_simulation
from gradleak.errors import GradleakError, unknown_name

if TYPE_CHECKING:
    from gradleak.audit.run import AttackPlan
    from gradleak.targets import Target

KINDS = ("gradient", "difference")


def plan_simulation(
    chosen: ChosenAttack,
    target: Target,
    text: PrivateText,
    client: DefendedClient,
    batch_size: int,
    facts: Sequence[str],
) -> tuple[AttackPlan, PlanDescription]:
    """Plan an attack on the updates of a simulated client."""
    from gradleak.audit.run import AttackPlan

    text = text.of(target)
    scenario = client.scenario(text, batch_size, facts, chosen.seed)
    plan = AttackPlan.simulate(chosen.attack, target, scenario, seed=chosen.seed, budget=chosen.budget)
    return plan, describe_simulation(plan, text, client, batch_size, chosen.preset)


def plan_captured(
    chosen: ChosenAttack, path: Path, choice: AttackChoice, text: TextChoice, model: ModelChoice, fedavg: str | None
) -> tuple[AttackPlan, PlanDescription]:
    """Plan an attack on an update from a file; the attacker knows only what the options say."""
    from gradleak.audit.run import AttackPlan
    from gradleak.audit.scenario import CapturedBatch
    from gradleak.exchange import Knowledge, Update, settle_kind

    knowledge = Knowledge(
        labels=parse_whole_numbers(text.labels, "--labels"),
        lengths=parse_whole_numbers(choice.lengths, "--lengths"),
        batch_size=text.batch_size,
    )
    stated = _stated_kind(choice.kind, fedavg)
    update = Update.load(path)
    if not update.tensors:
        raise GradleakError(f"{path} holds no tensors")
    target = model.load(0, origin=update.origin)
    update, reason = settle_kind(update, target, path, **stated)
    batch = CapturedBatch(update, knowledge)
    plan = AttackPlan(
        attack=chosen.attack, target=target, batches=iter([batch]), count=1, seed=chosen.seed, budget=chosen.budget
    )
    return plan, describe_captured(batch, path, reason, text.batch_size, chosen.preset)


def _stated_kind(kind: str | None, fedavg: str | None) -> dict[str, Any]:
    """Return what `--kind` and `--fedavg` state about a captured update, as arguments of `settle_kind`."""
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind of update", kind, KINDS)
    return {"kind": kind, "training": parse_fedavg(fedavg)}
