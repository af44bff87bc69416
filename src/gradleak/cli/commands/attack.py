"""`gradleak attack`: reconstruct private text from an update."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gradleak.cli.codes import INTERRUPTED
from gradleak.cli.interrupts import acknowledge
from gradleak.cli.options.attack import AttackChoice
from gradleak.cli.options.groups import with_groups
from gradleak.cli.options.parse import check_outputs, parse_know, parse_settings
from gradleak.cli.options.scenario import ClientChoice, ModelChoice, TextChoice
from gradleak.cli.options.shared import JsonFile, Quiet, Seed
from gradleak.cli.output.attack_report import show_batch, show_interrupt, show_summary
from gradleak.cli.output.json_file import attack_record, write_json
from gradleak.cli.output.live import RunShare, attack_watch
from gradleak.cli.output.overview import PlanDescription, overview
from gradleak.cli.output.screen import Screen
from gradleak.cli.planning import plan_captured, plan_simulation
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from gradleak.audit.run import AttackPlan, BatchResult
    from gradleak.audit.scenario import CapturedBatch
    from gradleak.exchange import Listener


@with_groups
def attack(
    *,
    text: TextChoice,
    choice: AttackChoice,
    model: ModelChoice,
    client: ClientChoice,
    seed: Seed = 0,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Attack an update and show what can be read back.

    Give private text, and a client is simulated here whose update is attacked and whose text is known to score
    against; or give --update with a file that was captured elsewhere. A result that says "verified" is proven: every
    text returned was trained on, given that the update was computed honestly from the stated weights; "complete" adds
    that nothing else was (docs/verified.md).
    """
    _check_source(text, client, choice)
    read = (text.dataset, choice.update, model.model, model.adapter, *parse_settings(choice.settings).values())
    check_outputs([("--json", json_file)], read)
    chosen = choice.build(seed)
    if choice.update is not None:
        plan, description = plan_captured(chosen, choice.update, choice, text, model, client.fedavg)
    else:
        facts = parse_know(choice.know, chosen.attack.assumes)
        sender, private = client.read(), text.read()
        target = model.load(seed, num_labels=private.num_labels)
        plan, description = plan_simulation(chosen, target, private, sender, text.batch_size or 1, facts)
    first = plan.first()
    chosen.attack.check(plan.target, first.update, first.knowledge)  # before anything is printed
    screen = Screen(quiet, json_file)
    screen.overview(overview(plan, description))
    run_and_report(plan, description, screen, json_file)


def run_and_report(
    plan: AttackPlan, description: PlanDescription, screen: Screen, json_file: Path | None
) -> list[BatchResult]:
    """Run a plan, print its results as they arrive, write the JSON file, and return the results.

    Raises:
        typer.Exit: after Ctrl-C, when the finished batches are printed and written.
    """
    from gradleak.audit.run import run_plan

    watch = attack_watch(screen, plan.target.tokenizer)
    results: list[BatchResult] = []
    began = time.monotonic()

    def watch_group(group: Sequence[CapturedBatch]) -> AbstractContextManager[Listener]:
        last = len(results) + len(group)
        title = f"batch {last}" if len(group) == 1 else f"batches {len(results) + 1} to {last}"
        share = RunShare(len(results), len(group), plan.count, time.monotonic() - began)
        return watch.group(f"{plan.attack.name}, {title} of {plan.count}", group[0].references, share)

    interrupted = False
    try:
        for group in run_plan(plan, watch_group, adapt_threads=True):
            for result in group:
                results.append(result)
                show_batch(screen, result, len(results), plan.count)
    except KeyboardInterrupt:
        acknowledge()
        interrupted = True
        show_interrupt(screen, watch.last, len(results), plan.count)
    show_summary(screen, results)
    write_json(json_file, attack_record(plan, description, results, interrupted=interrupted))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    return results


def _check_source(text: TextChoice, client: ClientChoice, choice: AttackChoice) -> None:
    """Refuse none or several of text, dataset and update, and options that do not go with the one given."""
    sources = (("TEXT", text.texts), ("--dataset", text.dataset), ("--update", choice.update))
    given = [word for word, value in sources if value]
    if not given:
        raise GradleakError("there is nothing to attack: give TEXT, --dataset NAME|FILE or --update FILE")
    if len(given) > 1:
        raise GradleakError(f"{' and '.join(given)} exclude each other: give one of them")
    if choice.update is None:
        _check_simulation(choice)
    else:
        _check_captured(text, client, choice)


def _check_simulation(choice: AttackChoice) -> None:
    if choice.lengths is not None:
        raise GradleakError("--lengths is for --update; otherwise the texts say how long they are (see --know)")
    if choice.kind is not None:
        raise GradleakError("--kind is for --update; a client that is simulated here sends a difference with --fedavg")


def _check_captured(text: TextChoice, client: ClientChoice, choice: AttackChoice) -> None:
    simulated = {
        "--take": text.take,
        "--text-column": text.text_column,
        "--label-column": text.label_column,
        "--know": choice.know,
        "--dropout": client.dropout,
        "--embeddings": client.embeddings,
        "--precision": client.precision != "fp32",
        "--send": client.send != "fp32",
        "--clients": client.clients > 1,
        "--defense": client.defense,
    }
    pointless = next((option for option, value in simulated.items() if value), None)
    if pointless is not None:
        raise GradleakError(
            f"{pointless} is for a client simulated here; with --update give --labels, --lengths or --batch-size"
        )
