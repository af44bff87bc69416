"""`gradleak study show`: print the summary of a study as a table or as data, and draw its plots.

What is shown is computed in `gradleak.studies.report`; here it is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.options import shared as o
from gradleak.cli.options.parse import check_outputs
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.screen import Screen
from gradleak.cli.output.wording import plural
from gradleak.errors import GradleakError, unknown_name
from gradleak.printable import visible

if TYPE_CHECKING:
    from gradleak.studies.report.summary import Overview
    from gradleak.studies.report.tables import TextTable

TABLE, CSV, LATEX, JSON = FORMATS = ("table", "csv", "latex", "json")
LONGEST_BOXED = 300  # rows; longer tables are printed without boxes, which would take seconds
DROPPED_FIRST = ("accuracy", "seconds", "paper exact", "exact %", "R-L", "paper MCC")
"""Columns that a narrow terminal leaves out, the least important first; after them the others from the right."""
KEPT_LONGEST = "R-1"
SHORTEST_LABEL = 12  # characters of a line; longer labels are broken

StudyFile = Annotated[Path, typer.Argument(metavar="FILE.db", help="What `gradleak study run` wrote.")]
Format = Annotated[str, typer.Option("--format", metavar="table|csv|latex|json", help="How to print it.")]
By = Annotated[
    str | None,
    typer.Option(
        metavar="attack,defense,…",
        help="Which conditions tell rows apart: attack, target, dataset, batch-size, client, defense, knowledge, …",
        show_default="all",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="Draw leakage against noise, pruning, batch size, …", show_default=False),
]
Kind = Annotated[
    str | None,
    typer.Option(metavar="leakage-noise,…", help="Which of the plots to draw.", show_default="all there are"),
]


def show(
    file: StudyFile,
    format: Format = TABLE,
    by: By = None,
    plot: Plot = None,
    kind: Kind = None,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Show what a study found so far: one row per configuration, with the paper's figures beside ours."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if kind is not None and plot is None:
        raise GradleakError("--kind chooses what --plot FILE.png draws; give both")
    check_outputs([("--plot", plot), ("--json", json_file)], [file])
    from gradleak.studies.report.export import as_record
    from gradleak.studies.report.summary import summarise

    screen = Screen(quiet, json_file)
    overview = summarise(file, by.split(",") if by else None)
    _print(screen, overview, format)
    write_json(json_file, as_record(overview))
    if plot is not None:
        from gradleak.studies.report.panels import KINDS
        from gradleak.studies.report.plots import draw

        whole = summarise(file) if by else overview
        panels = draw(whole, plot, [name.strip() for name in kind.split(",")] if kind else KINDS)
        if format == TABLE:
            screen.line(f"drawn: {', '.join(dict.fromkeys(panel.title.lower() for panel in panels))} in {plot}")


def _print(screen: Screen, overview: Overview, format: str) -> None:
    from gradleak.studies.report.export import to_csv, to_json, to_latex

    if format == TABLE:
        _print_tables(screen, overview)
    else:
        screen.data({CSV: to_csv, LATEX: to_latex, JSON: to_json}[format](overview))


def _print_tables(screen: Screen, overview: Overview) -> None:
    from gradleak.studies.report.tables import constants, notes, text_tables

    screen.line(overview.title or overview.study or "a study", "bold")
    screen.line(f"{plural(overview.finished, 'finished cell')}")
    if same := constants(overview):
        screen.line(f"everywhere: {same}")
    screen.line()
    for table in text_tables(overview):
        if screen.rich and len(table.cells) <= LONGEST_BOXED:
            _print_boxed(screen, table)
        else:
            _print_plain(screen, table)
    for line in notes(overview):
        screen.line(line)


def _print_plain(screen: Screen, table: TextTable) -> None:
    widths = [max(map(len, column)) for column in zip(table.titles, *table.cells, strict=True)]
    line = "  ".join(f"{{:{'<' if number < table.texts else '>'}{width}}}" for number, width in enumerate(widths))
    screen.data("".join(f"{line.format(*map(visible, row)).rstrip()}\n" for row in [table.titles, *table.cells]))


def _print_boxed(screen: Screen, table: TextTable) -> None:
    from rich import box
    from rich.table import Table

    shown = fitting_columns(table.titles, table.cells, screen.console.width, table.texts)
    if len(shown) == table.texts:  # not even the labels fit beside each other
        for row in table.cells:
            screen.facts(list(zip(table.titles, row, strict=True)))
            screen.line()
        return
    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for number in shown:
        text = number < table.texts
        drawn.add_column(
            table.titles[number],
            justify="left" if text else "right",
            no_wrap=not text,
            overflow="fold",
            min_width=min(SHORTEST_LABEL, max(len(row[number]) for row in table.cells)) if text else None,
        )
    for row in table.cells:
        drawn.add_row(*(row[number] for number in shown))
    screen.console.print(drawn)
    left_out = [title for number, title in enumerate(table.titles) if number not in shown]
    if left_out:
        screen.line(f"no room for {', '.join(left_out)}: widen the terminal, or --format csv")


def fitting_columns(titles: Sequence[str], cells: Sequence[Sequence[str]], width: int, texts: int) -> list[int]:
    """Return the numbers of the columns that fit a terminal, leaving out the least important numbers first.

    The first `texts` columns are labels: they stay, and may be broken into lines.
    """
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    widths = [(min(size, SHORTEST_LABEL) if number < texts else size) + 3 for number, size in enumerate(widths)]
    shown = list(range(len(titles)))
    others = [title for title in reversed(titles[texts:]) if title not in (*DROPPED_FIRST, KEPT_LONGEST)]
    for title in (*DROPPED_FIRST, *others, KEPT_LONGEST):
        if sum(widths[number] for number in shown) <= width:
            break
        shown = [number for number in shown if number < texts or titles[number] != title]
    return shown
