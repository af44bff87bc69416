"""`gradleak audit`: how much of a training setup's text can be read back, and which defense stops it, in one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.codes import FAILED, INTERRUPTED
from gradleak.cli.commands.study import Ray, Workers, study_executor
from gradleak.cli.options.audit import AuditChoice, AuditFolder, FailAbove, Reveal, command_text
from gradleak.cli.options.groups import Without, with_groups
from gradleak.cli.options.scenario import ClientChoice, ModelChoice
from gradleak.cli.options.shared import Quiet, Seed
from gradleak.cli.output.audit_board import AuditBoard
from gradleak.cli.output.screen import Screen
from gradleak.cli.startup import when_begun
from gradleak.errors import GradleakError

if TYPE_CHECKING:
    from gradleak.assessment.ladders import Ladder
    from gradleak.assessment.plan import AuditPlan
    from gradleak.assessment.subject import Subject


@with_groups
def audit(
    *,
    choice: AuditChoice,
    model: Annotated[ModelChoice, Without("allow_pickle", "trust_remote_code", "model_seed")],
    client: ClientChoice,
    output: AuditFolder,
    seed: Seed = 0,
    fail_above: FailAbove = None,
    reveal: Reveal = False,
    workers: Workers = None,
    ray: Ray = None,
    quiet: Quiet = False,
) -> None:
    """Audit a training setup: attack it as it is, find where leakage ends, what that costs, and write one report.

    The folder gets report.html (one page, without private words unless --reveal), audit.json (the same as data) and
    study.db (all records, private). Stop it at any time; the same command continues. docs/audit.md explains the page.
    """
    if workers is not None and ray is not None:
        raise GradleakError("--workers and --ray exclude each other: give one of them")
    from gradleak.assessment.plan import describe
    from gradleak.assessment.run import AuditOutput, AuditWatch, check_folder, run_audit
    from gradleak.assessment.verdict import GateLimit

    gate = [GateLimit.parse(text) for text in fail_above or ()]
    check_folder(output)
    request = choice.request(model, client, seed)
    command = command_text(
        "audit", choice, model, client, seed=seed or None, fail_above=fail_above, workers=workers, output=output
    )
    screen = Screen(quiet)
    screen.line("looking at model and data \N{HORIZONTAL ELLIPSIS}")
    with AuditBoard(screen, request.budget, reveal) as board:

        def planned(subject: Subject, plan: AuditPlan, every: tuple[Ladder, ...]) -> None:
            screen.overview(describe(request, subject, plan, every))

        try:
            record = run_audit(
                request,
                AuditOutput(output, command, reveal, gate),
                study_executor(workers, ray, request.device),
                AuditWatch(planned, board.trial, board.see),
                began=when_begun(),
            )
        except KeyboardInterrupt:
            screen.line("interrupted: what has finished is kept; the same command continues", "yellow")
            raise typer.Exit(INTERRUPTED) from None
    _show(screen, record, output)
    unmeasured = record["verdict"]["level"] == "unknown"
    if unmeasured or any(not check["passed"] for check in record["gate"]):
        raise typer.Exit(FAILED)


def _show(screen: Screen, record: dict[str, Any], output: object) -> None:
    screen.line()
    screen.result(record["verdict"]["sentence"])
    if record["recommendation"]:
        screen.result(record["recommendation"]["sentence"])
    for check in record["gate"]:
        state = "passed" if check["passed"] else "failed"
        screen.result(f"gate {state}: {check['score']} {check['found']}, limit {check['limit']:g}")
    screen.line(f"report: {output}/report.html   data: {output}/audit.json   records, private: {output}/study.db")
