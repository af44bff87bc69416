"""Leakage against noise, pruning, batch size, dropout and usefulness: small multiples in one figure.

A panel is drawn where a study's records have at least two points for it. In each panel one condition varies along the
axis and all others are held at one setting: the one that has the most points, named below the panel's title.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.errors import GradleakError, missing_extra, unknown_name
from gradleak.studies.report.placing import Wrapper, best_box, spread
from gradleak.studies.report.summary import ATTACK_ORDER, NO_DEFENSE, Overview, Row, attack_label, in_words, strength

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("leakage-noise", "leakage-pruning", "leakage-batch-size", "leakage-dropout", "leakage-utility")
NOISES = {"noise": "Gaussian noise (σ)", "laplace": "Laplace noise (b)", "dpsgd": "DP-SGD noise (σ)"}
PRUNINGS = {
    "prune": "share pruned",
    "prune-global": "share pruned, of the whole update",
    "mask": "share masked at random",
}
HELD = ("target", "dataset", "batch_size", "dropout", "embeddings", "fedavg", "defense")
SCORE, SCORE_TITLE = "rouge1", "ROUGE-1"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")  # Okabe and Ito
MARKERS = "osD^vPX*"
GREY = "#555555"
COLUMNS, WIDTH, HEIGHT = 3, 4.6, 4.2  # a panel in inches, without the names beside it
TITLE_SIZE, DETAIL_SIZE = 16, 11
FAR = 0.1  # share of a panel from which on a word is tied to its point by a line
ENOUGH_ATTACKED, ENOUGH_TESTED = 30, 100
"""Fewer sentences than these say too little of a defense to call it useful and private."""
STYLE = {
    "font.size": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


@dataclass(frozen=True)
class Point:
    """Where a row stands on a panel's axis, and a word to write beside it."""

    place: float
    row: Row
    word: str = ""


@dataclass(frozen=True)
class Panel:
    """One small plot.

    Attributes:
        title: what varies.
        detail: the setting in which it does.
        axis: what stands below the axis.
        ticks: the words at the places 0, 1, 2, … of the axis; none if it is a scale of numbers.
        lines: the points of each attack, from left to right.
        sample: from how many sentences its points come.
        verdict: what stands in the corner of defenses that are worth having; empty if there were too few sentences.
    """

    title: str
    detail: str
    axis: str
    ticks: tuple[str, ...]
    lines: Mapping[str, tuple[Point, ...]]
    sample: str = ""
    verdict: str = ""


def draw(overview: Overview, path: str | Path, kinds: Sequence[str] = KINDS) -> tuple[Panel, ...]:
    """Draw a study's panels into a file and return them.

    Args:
        overview: the study, by all conditions.
        path: the picture; its ending says which format: .png, .svg, .pdf.
        kinds: which of `KINDS` to draw.

    Raises:
        GradleakError: if matplotlib is missing, or the records hold nothing to draw.
    """
    panels = find_panels(overview, kinds)
    if not panels:
        raise GradleakError(f"there is nothing to draw for {', '.join(kinds)}: a line needs two points or more")
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise missing_extra("matplotlib", "plot", "drawing a study") from None
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with rc_context(STYLE):  # type: ignore[arg-type]
        names = sorted({name for panel in panels for name in panel.lines}, key=_oldest_first)
        width = WIDTH + 0.11 * max(len(line) for name in names for line in name.split("\n"))
        spaced = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
        where = ", ".join(in_words(name, value) for name, value in overview.same.items() if name in HELD)
        headline = f"{overview.study or 'study'}: what an attacker reads back" + (f"  ({where})" if where else "")
        wrapper = Wrapper()
        headline = wrapper.wrap(headline, TITLE_SIZE, width * columns * 0.97)
        details = [_details(panel, wrapper) for panel in panels]
        lines = max(text.count("\n") for text in details) * rows + headline.count("\n")
        size = (width * columns, HEIGHT * rows + 0.6 + 0.25 * lines)
        figure = Figure(figsize=size, layout=spaced)
        FigureCanvasAgg(figure)
        for number, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, number + 1)
            _draw_panel(axes, panel, details[number], names)
            if number % columns == 0:
                axes.set_ylabel(f"text recovered ({SCORE_TITLE}, %)")
        figure.suptitle(headline, x=0.01, ha="left", fontsize=TITLE_SIZE)
        try:
            figure.savefig(path, dpi=160)
        except (OSError, ValueError) as error:
            raise GradleakError(f"{path} cannot be written: {error}") from None
    return tuple(panels)


# --- what there is to draw -------------------------------------------------------------------------------------------

Finder = Callable[[Sequence[Row], Sequence[str]], list[Panel]]


def find_panels(overview: Overview, kinds: Sequence[str] = KINDS) -> list[Panel]:
    """Return the panels that the records have points for, one of each kind for each model and dataset."""
    for kind in kinds:
        if kind not in KINDS:
            raise unknown_name("kind of plot", kind, KINDS)
    sources: dict[tuple[Any, Any], list[Row]] = {}
    for row in overview.rows:
        sources.setdefault((row.conditions["target"], row.conditions["dataset"]), []).append(row)
    return [
        panel
        for kind in KINDS
        if kind in kinds
        for rows in sources.values()
        for panel in FINDERS[kind](rows, overview.varied)
    ]


def _defense_panels(families: Mapping[str, str], title: str) -> Finder:
    def find(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
        panels = []
        for family, axis in families.items():
            among = [row for row in rows if _family(row) in (NO_DEFENSE, family)]
            panels += _panel(among, varied, title, axis, "defense", lambda value: (strength(value), _short(value)))
        return panels

    return find


def _batch_panels(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
    return _panel(rows, varied, "Batch size", "sentences per update", "batch_size", lambda size: (size, str(size)))


def _dropout_panels(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
    return _panel(rows, varied, "Dropout", "dropout while training", "dropout", _dropout_tick)


def _dropout_tick(dropout: float) -> tuple[float, str]:
    """Return the place and the name of the model's own dropout, of none, and of a rate in its place."""
    return dropout, "off" if not dropout else "on" if dropout is True else f"{dropout:g}"


def _utility_panels(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
    """What the strongest attack recovers under each defense, and what the defense costs: the axis is a scale."""
    measured = [row for row in rows if row.utility is not None]
    lines, detail = _lines(measured, "defense", varied)
    no_mcc = all(row.utility is None or not row.utility.mcc for row in measured)
    strongest: dict[str, tuple[str, Row]] = {}
    for name, row in ((name, row) for name, found in lines.items() for row in found):
        best = strongest.get(row.conditions["defense"])
        if best is None or row.scores[SCORE].mean > best[1].scores[SCORE].mean:
            strongest[row.conditions["defense"]] = name, row
    leaders = {name.partition("\n")[0] for name, _ in strongest.values()}
    drawn: dict[str, tuple[Point, ...]] = {}
    for defense, (name, row) in strongest.items():
        place = _usefulness(row, no_mcc)
        if place is not None:
            attack = f" ({attack_label(row.conditions['attack'])})" if len(leaders) > 1 else ""
            drawn[name] = (*drawn.get(name, ()), Point(place, row, f"{defense}{attack}"))
    if len({point.place for points in drawn.values() for point in points}) < 2:
        return []
    axis = "accuracy of the trained model (%)" if no_mcc else "usefulness of the trained model (MCC)"
    told = f"strongest attack: {leaders.pop()}" if len(leaders) == 1 else "strongest attack"
    points = [point for found in drawn.values() for point in found]
    attacked = min(point.row.different for point in points)
    tested = min((point.row.utility.tested or 0) if point.row.utility else 0 for point in points)
    sample = f"{attacked} attacked and {tested or 'an unknown number of'} test sentences"
    enough = attacked >= ENOUGH_ATTACKED and tested >= ENOUGH_TESTED
    if not enough:
        sample += f": too few to judge a defense ({ENOUGH_ATTACKED} and {ENOUGH_TESTED})"
    verdict = "useful and private" if enough else ""
    title = "Leakage and usefulness"
    return [Panel(title, ", ".join(filter(None, [detail, told])), axis, (), drawn, sample, verdict)]


FINDERS: dict[str, Finder] = {
    "leakage-noise": _defense_panels(NOISES, "Noise"),
    "leakage-pruning": _defense_panels(PRUNINGS, "Pruning"),
    "leakage-batch-size": _batch_panels,
    "leakage-dropout": _dropout_panels,
    "leakage-utility": _utility_panels,
}


def _panel(
    rows: Sequence[Row],
    varied: Sequence[str],
    title: str,
    axis: str,
    condition: str,
    tick: Callable[[Any], tuple[float, str]],
) -> list[Panel]:
    """Return the panel in which one condition varies, if it does."""
    lines, detail = _lines([row for row in rows if row.conditions[condition] is not None], condition, varied)
    ticks = sorted({tick(row.conditions[condition]) for found in lines.values() for row in found})
    if len(ticks) < 2:
        return []
    drawn = {
        name: tuple(
            sorted((Point(ticks.index(tick(row.conditions[condition])), row) for row in found), key=lambda p: p.place)
        )
        for name, found in lines.items()
    }
    counts = sorted({point.row.different for points in drawn.values() for point in points})
    sample = f"sentences for each point: {' to '.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))}"
    return [Panel(title, detail, axis, tuple(word for _, word in ticks), drawn, sample)]


def _lines(rows: Sequence[Row], condition: str, varied: Sequence[str]) -> tuple[dict[str, list[Row]], str]:
    """Return each attack's rows in the setting that has the most points, and the setting in words."""
    held = [name for name in HELD if name != condition]
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(str([row.conditions[name] for name in held]), []).append(row)
    chosen = max(settings.values(), default=[], key=lambda found: _points(found, condition))
    lines: dict[str, list[Row]] = {}
    for row in chosen:
        lines.setdefault(_line_name(row, chosen), []).append(row)
    told = [name for name in held if name in varied and chosen]
    detail = ", ".join(in_words(name, chosen[0].conditions[name]) for name in told)
    return {name: found for name, found in lines.items() if len(found) > 1}, detail


def _points(rows: Sequence[Row], condition: str) -> tuple[int, int]:
    return len({str(row.conditions[condition]) for row in rows}), len(rows)


def _line_name(row: Row, rows: Sequence[Row]) -> str:
    """Return the attack's name, and what tells it from other lines of the same attack."""
    rivals = [other.conditions for other in rows if other.conditions["attack"] == row.conditions["attack"]]
    usual: dict[str, Any] = {"preset": "paper", "settings": {}, "knowledge": None}  # goes without saying
    apart = [
        name
        for name, value in usual.items()
        if row.conditions[name] != value and any(other[name] != row.conditions[name] for other in rivals)
    ]
    return "\n".join(
        [attack_label(row.conditions["attack"]), *(in_words(name, row.conditions[name]) for name in apart)]
    )


def _usefulness(row: Row, no_mcc: bool) -> float | None:
    if row.utility is None or not no_mcc:
        return None if row.utility is None else row.utility.mcc
    return None if row.utility.accuracy is None else 100 * row.utility.accuracy


def _family(row: Row) -> str:
    defense = str(row.conditions["defense"])
    return defense if "+" in defense else defense.partition(":")[0]


def _short(defense: str) -> str:
    return "none" if defense == NO_DEFENSE else f"{strength(defense):g}"


# --- drawing it ------------------------------------------------------------------------------------------------------


def _details(panel: Panel, wrapper: Wrapper) -> str:
    """Return what stands below a panel's title, in lines that fit its width."""
    return "\n".join(wrapper.wrap(text, DETAIL_SIZE, WIDTH * 0.9) for text in (panel.detail, panel.sample) if text)


def _draw_panel(axes: Axes, panel: Panel, details: str, names: Sequence[str]) -> None:
    pad = 8 + DETAIL_SIZE * 1.4 * (1 + details.count("\n"))
    axes.set_title(panel.title, loc="left", fontsize=15, fontweight="bold", pad=pad)
    axes.annotate(details, (0, 1), (0, 7), "axes fraction", "offset points", fontsize=DETAIL_SIZE, color=GREY)
    axes.set_xlabel(panel.axis)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.set_xlim(-0.25, len(panel.ticks) - 0.75)
    else:
        _set_scale(axes, panel)
    for name, points in panel.lines.items():
        number = names.index(name)
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        places = [point.place for point in points]
        scores = [point.row.scores[SCORE] for point in points]
        low, high = [score.low for score in scores], [score.high for score in scores]
        if panel.ticks:
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        else:
            axes.vlines(places, low, high, color=colour, alpha=0.3, linewidth=2)
        line = "-" if panel.ticks else "none"
        means = [score.mean for score in scores]
        axes.plot(places, means, color=colour, marker=marker, linestyle=line, linewidth=2.5, markersize=8)
    if panel.ticks:
        _label_lines(axes, panel, names)
    else:
        _label_points(axes, panel)


def _set_scale(axes: Axes, panel: Panel) -> None:
    """Show usefulness up to the best there can be, so that the right edge means useful and not most useful of these."""
    best = 100.0 if "accuracy" in panel.axis else 1.0
    worst = min(point.place for points in panel.lines.values() for point in points)
    axes.set_xlim(min(0.0, worst) - 0.06 * best, 1.06 * best)


def _label_lines(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    """Write each line's name at its right end, none over another."""
    ends = sorted((points[-1].row.scores[SCORE].mean, name) for name, points in panel.lines.items())
    heights = spread([mean for mean, _ in ends], [7.0 * (1 + name.count("\n")) for _, name in ends])
    for height, (mean, name) in zip(heights, ends, strict=True):
        colour = PALETTE[names.index(name) % len(PALETTE)]
        place = panel.lines[name][-1].place
        axes.annotate(
            name,
            (place, mean),
            (10, (height - mean) / 100 * HEIGHT * 0.62 * 72),
            textcoords="offset points",
            color=colour,
            fontsize=12.5,
            fontweight="bold",
            linespacing=1.05,
            va="center",
            annotation_clip=False,
        )


def _label_points(axes: Axes, panel: Panel) -> None:
    """Write each defense beside its point, on the first side where it covers nothing."""
    left, right = axes.get_xlim()
    points = sorted((p for found in panel.lines.values() for p in found), key=lambda point: -point.place)
    spots = [((p.place - left) / (right - left), p.row.scores[SCORE].mean / 100) for p in points]
    taken = [(x - 0.02, y - 0.03, x + 0.02, y + 0.03) for x, y in spots]
    for point, (x, y) in zip(points, spots, strict=True):
        box = best_box(x, y, 0.024 * len(point.word), taken)
        taken.append(box)
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        if abs(middle[1] - y) > FAR:
            axes.plot(
                *zip((x, y), middle, strict=True), transform=axes.transAxes, color="#CCCCCC", linewidth=1, zorder=0
            )
        axes.text(*middle, point.word, transform=axes.transAxes, ha="center", va="center", fontsize=12, color=GREY)
    axes.text(0.98, 0.03, panel.verdict, transform=axes.transAxes, ha="right", style="italic", color="#999999")


def _oldest_first(name: str) -> tuple[int, str]:
    attack = name.partition("\n")[0].removesuffix(" (ours)")
    return (ATTACK_ORDER.index(attack) if attack in ATTACK_ORDER else len(ATTACK_ORDER)), name
