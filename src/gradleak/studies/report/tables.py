"""An overview as tables of text, with the notes that explain them. Drawn by `study show`, and exported as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradleak.errors import GradleakError
from gradleak.studies.report.conditions import DEFAULTS, attack_label, in_words
from gradleak.studies.report.image_rows import IMAGE_CONDITIONS, ImageRow
from gradleak.studies.report.rows import Row
from gradleak.studies.report.summary import Overview
from gradleak.studies.report.utility_rows import UtilityRow

ROUGE = {"rouge1": "R-1", "rouge2": "R-2", "rougeL": "R-L"}
IMAGE_SCORES = {"mse": ("MSE", 4), "psnr": ("PSNR dB", 1), "ssim": ("SSIM", 3), "lpips": ("LPIPS", 3)}
ERRORS_SHOWN = 5
EMPTY = "–"

Column = tuple[str, Callable[[Row], str]]


@dataclass(frozen=True)
class TextTable:
    """A table of text: the first `texts` columns hold words, the others numbers."""

    titles: Sequence[str]
    cells: Sequence[Sequence[str]]
    texts: int


def text_tables(overview: Overview, digits: int = 0) -> list[TextTable]:
    """Return the tables of rows, of images, and of utilities under defenses that no row has, as far as there are any.

    Args:
        overview: the study.
        digits: decimals of interval ends.
    """
    tables = []
    if overview.rows:
        columns = [column for column in _columns(overview, digits) if any(column[1](row) for row in overview.rows)]
        cells = [[write(row) or EMPTY for _, write in columns] for row in overview.rows]
        texts = sum(title in map(_title, overview.varied) for title, _ in columns)
        tables.append(TextTable([title for title, _ in columns], cells, texts))
    if overview.images:
        tables.append(_image_table(overview))
    if overview.utilities_alone:
        tables.append(_utility_table(overview.utilities_alone))
    return tables


def constants(overview: Overview) -> str:
    """Return the conditions that are the same in all rows, in words, without defaults."""
    return ", ".join(in_words(name, value) for name, value in overview.same.items() if DEFAULTS.get(name) != value)


def notes(overview: Overview) -> list[str]:
    """Return the lines below the tables: abbreviations, sources, and cells that are missing or old."""
    lines = []
    if overview.rows:
        lines.append(
            "n: sentences; R-1, R-2, R-L: ROUGE F-measure in %, in brackets its 95 % bootstrap interval over batches; "
            "seconds: per sentence"
        )
    if overview.images:
        lines.append("n: images; MSE, PSNR, SSIM, LPIPS: means over images; seconds: per image")
    if any(row.surplus for row in overview.rows):
        lines.append("precision %: of the texts returned, those that are exactly a private text; some were surplus")
    lost = max((row.unrepresentable or 0 for row in overview.rows), default=0)
    if lost:
        lines.append(f"up to {_count(lost, 'sentence')} of a row cannot be represented by the tokenizer: never exact")
    papers: dict[str, set[str]] = {}
    beside = [row.published for row in overview.rows] + [utility.published for utility in overview.utilities]
    beside += [row.published for row in overview.images]
    for published in filter(None, beside):
        papers.setdefault(published.source, set()).add(published.target)
    lines += [f"paper: {source}, on {', '.join(sorted(targets))}" for source, targets in papers.items()]
    lines += dict.fromkeys(line for row in overview.rows for line in _remarks(row))
    return lines + _missing_cells(overview)


def plain(value: object) -> str:
    """Return a condition's value as text for a column that names the condition."""
    if value is None:
        return "several"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value)


def _columns(overview: Overview, digits: int) -> list[Column]:
    """Return titles and contents of all columns; empty ones are left out later."""

    def condition(name: str) -> Column:
        write = _attack if name == "attack" else plain
        return _title(name), lambda row: write(row.conditions[name])

    def score(name: str, title: str) -> Column:
        return title, lambda row: _interval(row, name, digits)

    def figure(name: str, title: str, places: int) -> Column:
        return title, lambda row: _number(row.published.figures.get(name) if row.published else None, places)

    return [
        *(condition(name) for name in overview.varied),
        ("n", lambda row: str(row.sentences)),
        *(score(name, title) for name, title in ROUGE.items()),
        ("exact %", lambda row: _number(row.scores["exact"].mean)),
        # If every attack returns as many texts as there are sentences, precision equals `exact`.
        ("precision %", lambda row: _number(row.precision) if any(r.surplus for r in overview.rows) else ""),
        ("seconds", lambda row: _number(row.seconds, 2)),
        ("MCC", lambda row: _number(row.utility.mcc if row.utility else None, 3)),
        ("accuracy", lambda row: _percent(row.utility.accuracy if row.utility else None)),
        ("ε", lambda row: _epsilon(row.utility.epsilon if row.utility else None)),
        ("paper R-1/2/L", _paper_rouge),
        figure("exact", "paper exact", 1),
        figure("mcc", "paper MCC", 3),
        ("paper ε", lambda row: _epsilon(row.published.figures.get("epsilon") if row.published else None)),
    ]


def _utility_table(utilities: Sequence[UtilityRow]) -> TextTable:
    titles = ["target", "defense", "MCC", "accuracy", "ε"]
    cells = [[u.target, u.defense, _number(u.mcc, 3), _percent(u.accuracy), _epsilon(u.epsilon)] for u in utilities]
    figures = [u.published.figures if u.published else {} for u in utilities]
    if any(figures):
        titles += ["paper MCC", "paper ε"]
        for row, found in zip(cells, figures, strict=True):
            row += [_number(found.get("mcc"), 3), _epsilon(found.get("epsilon"))]
    return TextTable(titles, [[cell or EMPTY for cell in row] for row in cells], 2)


def _image_table(overview: Overview) -> TextTable:
    """Return the table of images, without conditions that are the same in all of its rows."""
    rows = overview.images
    by = [name for name in IMAGE_CONDITIONS if name in overview.by]
    varied = [name for name in by if len({plain(row.conditions[name]) for row in rows}) > 1] or by[:1]
    scores = [name for name in IMAGE_SCORES if any(name in row.scores for row in rows)]
    titles = [*map(_title, varied), "n", *(IMAGE_SCORES[name][0] for name in scores), "seconds"]
    beside = [name for name in scores if any(row.published and name in row.published.figures for row in rows)]
    titles += [f"paper {IMAGE_SCORES[name][0]}" for name in beside]
    cells = [
        [
            *(plain(row.conditions[name]) for name in varied),
            str(row.images),
            *(_image_score(row, name) for name in scores),
            _number(row.seconds, 2) or EMPTY,
            *(_image_figure(row, name) for name in beside),
        ]
        for row in rows
    ]
    return TextTable(titles, cells, len(varied))


def _image_score(row: ImageRow, name: str) -> str:
    return f"{row.scores[name].mean:.{IMAGE_SCORES[name][1]}f}" if name in row.scores else EMPTY


def _image_figure(row: ImageRow, name: str) -> str:
    return _number(row.published.figures.get(name), IMAGE_SCORES[name][1]) if row.published else EMPTY


def _missing_cells(overview: Overview) -> list[str]:
    """Return the notes on cells that are stale, old or failed."""
    lines = [
        f"{_count(cells, 'stale cell')} left out ({why}): `gradleak study run` runs them again"
        for why, cells in overview.stale
    ]
    lines += [
        f"{_count(cells, 'old cell')} shown ({why}): `gradleak study run` runs them again, --keep-old keeps them"
        for why, cells in overview.old
    ]
    if overview.failed:
        lines.append(f"{_count(sum(cells for _, cells in overview.failed), 'cell')} failed:")
        lines += [f"  {_count(cells, 'cell')}: {error}" for error, cells in overview.failed[:ERRORS_SHOWN]]
        rest = len(overview.failed) - ERRORS_SHOWN
        lines += [f"  and {_count(rest, 'other error')}; --format json has them all"] if rest > 0 else []
    return lines


def _remarks(row: Row) -> tuple[str, ...]:
    """Return the attack's remarks on its settings, if the row has one attack and this version knows it."""
    name, preset, settings = (row.conditions[column] for column in ("attack", "preset", "settings"))
    if name is None or preset is None or settings is None:
        return ()
    from gradleak.studies.definition.specs import AttackSpec  # it imports torch

    try:
        return AttackSpec(name, preset, settings).build().remarks()
    except GradleakError:
        return ()


# --- values ----------------------------------------------------------------------------------------------------------


def _title(condition: str) -> str:
    return condition.replace("_", " ")


def _attack(value: object) -> str:
    return attack_label(plain(value))


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _epsilon(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _interval(row: Row, name: str, digits: int) -> str:
    score = row.scores[name]
    return f"{score.mean:.1f} ({score.low:.{digits}f}–{score.high:.{digits}f})"


def _paper_rouge(row: Row) -> str:
    figures = row.published.figures if row.published else {}
    return "/".join(f"{figures[name]:.1f}" for name in ROUGE) if figures.keys() >= ROUGE.keys() else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
