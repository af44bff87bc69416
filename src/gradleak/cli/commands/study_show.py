"""`gradleak study show`: what a study found, as a table, as data, and drawn."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.options import shared as o
from gradleak.cli.options.parse import check_outputs
from gradleak.cli.output.json_file import write_json
from gradleak.cli.output.screen import SCORE_TITLES, Screen
from gradleak.cli.output.wording import plural
from gradleak.errors import GradleakError, unknown_name

if TYPE_CHECKING:
    from gradleak.studies.report.published import Published
    from gradleak.studies.report.summary import Overview, Row, Usefulness

SCHEMA = 1
LONG = 300  # rows from which on a table is printed plainly: boxes would take seconds
ERRORS_SHOWN = 5
MISSED_LEAST = ("accuracy", "seconds", "paper exact", "exact %", "R-L", "paper MCC")
COUNTED = ("precision", "surplus", "unrepresentable")
ROUGE = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L"}

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
    format: Format = "table",
    by: By = None,
    plot: Plot = None,
    kind: Kind = None,
    json_file: o.JsonFile = None,
    quiet: o.Quiet = False,
) -> None:
    """Show what a study found so far: one row per configuration, with the paper's figures beside ours."""
    from gradleak.studies.report.summary import summarise

    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if kind is not None and plot is None:
        raise GradleakError("--kind chooses what --plot FILE.png draws; give both")
    check_outputs([("--plot", plot), ("--json", json_file)], [file])
    screen = Screen(quiet)
    overview = summarise(file, by.split(",") if by else None)
    FORMATS[format](screen, overview)
    write_json(json_file, as_record(overview))
    if plot is not None:
        from gradleak.studies.report.plots import KINDS, draw

        whole = summarise(file) if by else overview
        panels = draw(whole, plot, [name.strip() for name in kind.split(",")] if kind else KINDS)
        if format == "table":
            screen.line(f"drawn: {', '.join(dict.fromkeys(panel.title.lower() for panel in panels))} in {plot}")


# --- data ------------------------------------------------------------------------------------------------------------


def as_record(overview: Overview) -> dict[str, Any]:
    """Return everything as JSON has it."""
    from gradleak.studies.report.summary import OURS

    return {
        "schema": SCHEMA,
        "study": overview.study,
        "title": overview.title,
        "finished": overview.finished,
        "failed": [{"error": error, "cells": cells} for error, cells in overview.failed],
        "stale": [{"why": why, "cells": cells} for why, cells in overview.stale],
        "old": [{"why": why, "cells": cells} for why, cells in overview.old],
        "same": overview.same,
        "rows": [
            {
                **row.conditions,
                "ours": row.conditions["attack"] in OURS,
                "sentences": row.sentences,
                "cells": row.cells,
                **{name: asdict(score) for name, score in row.scores.items()},
                **{name: getattr(row, name) for name in COUNTED},
                "seconds_per_sentence": row.seconds,
                "published": _published_record(row.published),
                "utility": None if row.utility is None else _utility_record(row.utility),
            }
            for row in overview.rows
        ],
        "utility": [{**_utility_record(u), "published": _published_record(u.published)} for u in overview.utilities],
    }


def flat_record(row: Row) -> dict[str, Any]:
    """Return a row as CSV has it: one value per column, the same columns in every study."""
    published, utility = row.published, row.utility
    record: dict[str, Any] = {name: _plain(value) for name, value in row.conditions.items()}
    record |= {"sentences": row.sentences, "cells": row.cells}
    for name, score in row.scores.items():
        record |= {name: score.mean, f"{name}_low": score.low, f"{name}_high": score.high}
    record["seconds_per_sentence"] = row.seconds
    record |= {name: getattr(utility, name, None) for name in ("mcc", "accuracy", "epsilon")}
    return record | _flat_published(published) | {name: getattr(row, name) for name in COUNTED}


def _published_record(published: Published | None) -> dict[str, Any] | None:
    return None if published is None else {"source": published.source, "target": published.target, **published.figures}


def _flat_published(published: Published | None) -> dict[str, Any]:
    from gradleak.studies.report.published import FIGURES

    record: dict[str, Any] = {"published_source": getattr(published, "source", None)}
    record |= {"published_target": getattr(published, "target", None)}
    figures: Mapping[str, float] = published.figures if published else {}
    return record | {f"published_{name}": figures.get(name) for name in FIGURES}


def _utility_record(utility: Usefulness) -> dict[str, Any]:
    """Return a training without the paper's figures."""
    names = ("target", "defense", "mcc", "accuracy", "epsilon", "cells", "tested")
    return {name: getattr(utility, name) for name in names}


def _print_json(screen: Screen, overview: Overview) -> None:
    typer.echo(json.dumps(as_record(overview), indent=2, ensure_ascii=False, allow_nan=False))


def _print_csv(screen: Screen, overview: Overview) -> None:
    from gradleak.studies.report.summary import CONDITIONS

    rows = [flat_record(row) for row in overview.rows]
    rows += [
        {**dict.fromkeys(CONDITIONS, None), **_utility_record(utility), **_flat_published(utility.published)}
        for utility in _alone(overview)
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(text.getvalue(), nl=False)


# --- tables ----------------------------------------------------------------------------------------------------------

Column = tuple[str, Callable[["Row"], str]]


@dataclass(frozen=True)
class Grid:
    """A table: its first columns are text, the others numbers."""

    titles: Sequence[str]
    cells: Sequence[Sequence[str]]
    texts: int


def _print_table(screen: Screen, overview: Overview) -> None:
    said = _said(overview)
    screen.line(overview.title or overview.study or "a study", "bold")
    screen.line(f"{plural(overview.finished, 'finished cell')}")
    if said:
        screen.line(f"everywhere: {said}")
    screen.line()
    for grid in _grids(overview):
        _table(screen, grid)
    for line in _notes(overview):
        screen.line(line)


def _print_latex(screen: Screen, overview: Overview) -> None:
    lines = [f"% {overview.title or overview.study or 'a study'}", f"% everywhere: {_said(overview)}"]
    lines += [f"% {line}" for line in _notes(overview)]
    for grid in _grids(overview, digits=1):
        lines += [
            f"\\begin{{tabular}}{{{'l' * grid.texts}{'r' * (len(grid.titles) - grid.texts)}}}",
            "\\toprule",
            " & ".join(map(_latex, grid.titles)) + " \\\\",
            "\\midrule",
            *(" & ".join(map(_latex, row)) + " \\\\" for row in grid.cells),
            "\\bottomrule",
            "\\end{tabular}",
        ]
    typer.echo("\n".join(lines))


FORMATS: dict[str, Callable[[Screen, Overview], None]] = {
    "table": _print_table,
    "csv": _print_csv,
    "latex": _print_latex,
    "json": _print_json,
}


def _grids(overview: Overview, digits: int = 0) -> list[Grid]:
    """Return the rows, and what was measured of defenses that no row has; `digits` are those of intervals."""
    grids = []
    if overview.rows:
        columns = [column for column in _columns(overview, digits) if any(column[1](row) for row in overview.rows)]
        cells = [[write(row) or "–" for _, write in columns] for row in overview.rows]
        texts = sum(title in map(_title, overview.varied) for title, _ in columns)
        grids.append(Grid([title for title, _ in columns], cells, texts))
    alone = [[u.target, u.defense, _number(u.mcc, 3), _percent(u.accuracy), _loss(u)] for u in _alone(overview)]
    if alone:
        titles = ["target", "defense", "MCC", "accuracy", "ε"]
        figures = [u.published.figures if u.published else {} for u in _alone(overview)]
        if any(figures):
            titles += ["paper MCC", "paper ε"]
            for row, found in zip(alone, figures, strict=True):
                row += [_number(found.get("mcc"), 3), _epsilon(found.get("epsilon"))]
        grids.append(Grid(titles, [[cell or "–" for cell in row] for row in alone], 2))
    return grids


def _columns(overview: Overview, digits: int) -> list[Column]:
    """Return titles and contents of all columns; one without contents is left out later."""

    def condition(name: str) -> Column:
        write = _attack if name == "attack" else _plain
        return _title(name), lambda row: write(row.conditions[name])

    def score(name: str, title: str) -> Column:
        return title, lambda row: _interval(row, name, digits)

    def figure(name: str, title: str, places: int) -> Column:
        return title, lambda row: _number(row.published.figures.get(name) if row.published else None, places)

    return [
        *(condition(name) for name in overview.varied),
        ("n", lambda row: str(row.sentences)),
        *(score(name, title) for name, title in ROUGE.items()),
        (f"{SCORE_TITLES['exact']} %", lambda row: _number(row.scores["exact"].mean)),
        # Where attacks return as many texts as there are sentences, it says no more than `exact`.
        ("precision %", lambda row: _number(row.precision) if any(r.surplus for r in overview.rows) else ""),
        ("seconds", lambda row: _number(row.seconds, 2)),
        ("MCC", lambda row: _number(row.utility.mcc if row.utility else None, 3)),
        ("accuracy", lambda row: _percent(row.utility.accuracy if row.utility else None)),
        ("ε", lambda row: _loss(row.utility)),
        ("paper R-1/2/L", _paper_rouge),
        figure("exact", "paper exact", 1),
        figure("mcc", "paper MCC", 3),
        ("paper ε", lambda row: _epsilon(row.published.figures.get("epsilon") if row.published else None)),
    ]


def _table(screen: Screen, grid: Grid) -> None:
    titles, cells, texts = grid.titles, grid.cells, grid.texts
    if not screen.rich or len(cells) > LONG:
        widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
        line = "  ".join(f"{{:{'<' if number < texts else '>'}{width}}}" for number, width in enumerate(widths))
        typer.echo("\n".join(line.format(*row).rstrip() for row in [titles, *cells]))
        return
    from rich import box
    from rich.table import Table

    shown = _fitting(titles, cells, screen.console.width)
    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for number in shown:
        is_text = number < texts
        drawn.add_column(titles[number], justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in cells:
        drawn.add_row(*(row[number] for number in shown))
    screen.console.print(drawn)
    left_out = [title for number, title in enumerate(titles) if number not in shown]
    if left_out:
        screen.line(f"no room for {', '.join(left_out)}: widen the terminal, or --format csv")


def _fitting(titles: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return which columns a terminal has room for, leaving out first what is missed least."""
    widths = [max(map(len, column)) + 3 for column in zip(titles, *cells, strict=True)]
    shown = list(range(len(titles)))
    for title in MISSED_LEAST:
        if sum(widths[number] for number in shown) <= width:
            break
        shown = [number for number in shown if titles[number] != title]
    return shown


def _said(overview: Overview) -> str:
    """Return what is the same in all rows, but for what goes without saying."""
    from gradleak.studies.report.summary import in_words

    usual: dict[str, object] = {"preset": "paper", "settings": {}}
    return ", ".join(in_words(name, value) for name, value in overview.same.items() if usual.get(name) != value)


def _notes(overview: Overview) -> list[str]:
    """Return what one must know to read the table."""
    notes = [
        "n: sentences; R-1, R-2, R-L: ROUGE F-measure in %, in brackets its 95 % bootstrap interval over batches; "
        "seconds: per sentence"
    ]
    if not overview.rows:
        notes = []
    if any(row.surplus for row in overview.rows):
        notes.append("precision %: of the texts returned, those that are exactly a private text; some were surplus")
    lost = max((row.unrepresentable or 0 for row in overview.rows), default=0)
    if lost:
        notes.append(f"up to {plural(lost, 'sentence')} of a row cannot be represented by the tokenizer: never exact")
    papers: dict[str, set[str]] = {}
    beside = [row.published for row in overview.rows] + [utility.published for utility in overview.utilities]
    for published in filter(None, beside):
        papers.setdefault(published.source, set()).add(published.target)
    notes += [f"paper: {source}, on {', '.join(sorted(targets))}" for source, targets in papers.items()]
    notes += dict.fromkeys(line for row in overview.rows for line in _remarks(row))
    notes += [
        f"{plural(cells, 'stale cell')} left out ({why}): `gradleak study run` runs them again"
        for why, cells in overview.stale
    ]
    notes += [
        f"{plural(cells, 'old cell')} shown ({why}): `gradleak study run` runs them again, --keep-old keeps them"
        for why, cells in overview.old
    ]
    count = sum(cells for _, cells in overview.failed)
    if count:
        notes.append(f"{plural(count, 'cell')} failed:")
        notes += [f"  {plural(cells, 'cell')}: {error}" for error, cells in overview.failed[:ERRORS_SHOWN]]
        rest = len(overview.failed) - ERRORS_SHOWN
        notes += [f"  and {plural(rest, 'other error')}; --format json has them all"] if rest > 0 else []
    return notes


def _remarks(row: Row) -> tuple[str, ...]:
    """Return what an attack says of its settings, as far as the row has one attack and this version knows it."""
    from gradleak.attacks import find_attack

    name, preset, settings = (row.conditions[column] for column in ("attack", "preset", "settings"))
    if name is None or preset is None or settings is None:
        return ()
    try:
        return find_attack(name).with_settings(preset, {key: str(item) for key, item in settings.items()}).remarks()
    except GradleakError:
        return ()


def _alone(overview: Overview) -> list[Usefulness]:
    """Return what was measured of defenses that no row has."""
    beside = [row.utility for row in overview.rows if row.utility]
    return [utility for utility in overview.utilities if utility not in beside]


# --- values ----------------------------------------------------------------------------------------------------------


def _title(condition: str) -> str:
    return condition.replace("_", " ")


def _plain(value: object) -> str:
    if value is None:
        return "several"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value)


def _attack(value: object) -> str:
    from gradleak.studies.report.summary import attack_label

    return attack_label(_plain(value))


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _loss(utility: Usefulness | None) -> str:
    return "" if utility is None else _epsilon(utility.epsilon)


def _epsilon(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _interval(row: Row, name: str, digits: int) -> str:
    score = row.scores[name]
    return f"{score.mean:.1f} ({score.low:.{digits}f}–{score.high:.{digits}f})"


def _paper_rouge(row: Row) -> str:
    figures = row.published.figures if row.published else {}
    return "/".join(f"{figures[name]:.1f}" for name in ROUGE) if figures.keys() >= ROUGE.keys() else ""


def _latex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "–": "--", "ε": "$\\varepsilon$", "σ": "$\\sigma$"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(special.get(sign, sign) for sign in text)
