"""`gradleak study`: run grids of experiments, and resume them after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.codes import FAILED, INTERRUPTED
from gradleak.cli.commands import study_show
from gradleak.cli.options.parse import check_output, check_overwriting, parse_device
from gradleak.cli.options.shared import OUTPUT, Device, JsonFile, Quiet
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.live import clock
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.study_board import Board, LiveBoard
from gradleak.cli.output.wording import plural
from gradleak.errors import GradleakError
from gradleak.files import STDOUT
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.studies import Executor, Study, Summary
    from gradleak.studies.definition.specs import AttackGrid, ImageGrid

WHERE = "Where it runs"

app = typer.Typer(name="study", help="Grids of experiments, with their records in one file.", no_args_is_help=True)

StudyName = Annotated[
    str, typer.Argument(metavar="NAME|FILE.toml", help="A study that comes with gradleak, or a file of your own.")
]
Records = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.db",
        help="Where the records go, or are from an earlier run.",
        show_default="NAME.db",
        rich_help_panel=OUTPUT,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Run in N worker processes.", show_default="this process", rich_help_panel=WHERE
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS|local",
        help="Run on a Ray cluster, or on one that is started here.",
        show_default=False,
        rich_help_panel=WHERE,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME|DIR|HUB_ID",
        help="Take this model in place of the study's own; repeat for several.",
        show_default=False,
        rich_help_panel=WHERE,
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="If another run holds the file, wait for it.", rich_help_panel=WHERE)
]
RetryFailed = Annotated[
    bool,
    typer.Option("--retry-failed", help="Also try again what failed three times.", rich_help_panel=WHERE),
]
KeepOld = Annotated[
    bool,
    typer.Option(
        "--keep-old",
        help="Keep results of other releases of gradleak, and those recorded without hashes of weights and sentences.",
        rich_help_panel=WHERE,
    ),
]


@app.command(epilog="Example: gradleak study run quick --workers 2")
def run(
    study: StudyName,
    output: Records = None,
    workers: Workers = None,
    ray: Ray = None,
    target: Targets = None,
    device: Device = "auto",
    wait: Wait = False,
    retry_failed: RetryFailed = False,
    keep_old: KeepOld = False,
    json_file: JsonFile = None,
    quiet: Quiet = False,
) -> None:
    """Run a study, or what is left of it: whatever stopped it, nothing that has finished is lost or run twice."""
    if workers is not None and ray is not None:
        raise GradleakError("--workers and --ray exclude each other: give one of them")
    _check_records(output)
    check_output(json_file)
    parse_device(device)
    from gradleak.studies import RunOptions, load_study, run_study

    loaded = load_study(study)
    path = output or Path(f"{loaded.name}.db")
    check_overwriting([("--output", path), ("--json", json_file)], [study, *_read_by(loaded), *(target or ())])
    screen = Screen(quiet, json_file)
    _overview(screen, loaded, path, workers, ray, device)
    board = LiveBoard(screen) if screen.rich and not quiet else Board(screen)
    try:
        with board:
            summary = run_study(
                loaded,
                path,
                executor=study_executor(workers, ray, device),
                targets=target,
                listener=board.see,
                options=RunOptions(wait=wait, retry_failed=retry_failed, keep_old=keep_old),
            )
    except KeyboardInterrupt:
        screen.line(f"interrupted: {board.done} of {board.cells} cells are done; run it again to continue", "yellow")
        write_json(json_file, _record(loaded, path, None, board))
        raise typer.Exit(INTERRUPTED) from None
    _draw(screen, summary, path)
    write_json(json_file, _record(loaded, path, summary, board))
    if summary.failed:
        raise typer.Exit(FAILED)


app.command(epilog="Example: gradleak study show quick.db --plot quick.png")(study_show.show)


def _check_records(path: Path | None) -> None:
    """Refuse a file of records that cannot be written; a link is followed, because records are not replaced."""
    if path == STDOUT:
        raise GradleakError("records are a database: --output takes the name of a file, not -")
    check_output(path.resolve() if path is not None and path.is_symlink() else path)


def _read_by(study: Study) -> Iterator[str]:
    """Yield every name in the study that may be a file or folder: datasets, models, settings of attacks."""
    grids: list[AttackGrid | ImageGrid] = [*study.grids, *study.images]
    for grid in grids:
        for dataset in grid.dataset:
            yield dataset.name
        for attack in grid.attack:
            yield from attack.texts.values()
        for model in grid.target:
            yield model.name
    for fine_tuning in study.utility:
        for dataset in (*fine_tuning.train, *fine_tuning.test):
            yield dataset.name
        for model in fine_tuning.target:
            yield model.name


def study_executor(workers: int | None, ray: str | None, device: str) -> Executor:
    """Return the executor that `--workers` and `--ray` choose."""
    from gradleak.studies import InProcess, Processes, RayCluster

    if ray is not None:
        return RayCluster(ray, device)
    return InProcess(device) if workers is None else Processes(workers, device)


def _overview(screen: Screen, study: Study, path: Path, workers: int | None, ray: str | None, device: str) -> None:
    where = f"Ray ({ray})" if ray else "this process" if workers is None else f"worker processes: {workers}"
    rows = [
        ("study", f"{study.name}: {study.title}" if study.title else study.name),
        ("records", str(path)),
        ("runs in", f"{where}, device {device}"),
    ]
    if study.unavailable:
        rows.append(("left out", f"{', '.join(study.unavailable)}: not available yet"))
    screen.facts(rows)


def _draw(screen: Screen, summary: Summary, path: Path) -> None:
    for failed in summary.failed:
        screen.result(f"failed after {plural(failed.attempts, 'attempt')}: {failed.cell.title}: {failed.error}")
    screen.result(
        f"{summary.done} of {plural(summary.cells, 'cell')} done, {summary.fresh} of them now, "
        f"{len(summary.failed)} failed; {clock(summary.seconds)}"
    )
    screen.line(f"look at them: gradleak study show {path}")


def _record(study: Study, path: Path, summary: Summary | None, board: Board) -> dict[str, Any]:
    failed = summary.failed if summary else ()
    return {
        "schema": 1,
        "study": study.name,
        "records": str(path),
        "cells": board.cells,
        "done": board.done,
        "failed": [
            {"id": each.cell.id, "cell": each.cell.config, "error": each.error, "attempts": each.attempts}
            for each in failed
        ],
        "unavailable": list(study.unavailable),
        "seconds": summary.seconds if summary else None,
        "interrupted": summary is None,
        "version": __version__,
    }
