"""Draw the panels of a study as small multiples in one figure, with matplotlib. Used by `study show --plot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.errors import GradleakError, missing_extra
from gradleak.files import write_atomically
from gradleak.studies.report.conditions import ATTACK_ORDER, DEFAULTS, in_words
from gradleak.studies.report.panels import HELD, KINDS, SCORE, SCORE_TITLE, Panel, Point, find_panels
from gradleak.studies.report.placing import Wrapper, best_box, spread
from gradleak.studies.report.summary import Overview

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")  # Okabe and Ito
MARKERS = "osD^vPX*"
GREY = "#555555"
COLUMNS, WIDTH, HEIGHT = 3, 4.6, 4.2  # a panel in inches, without the names beside it
TITLE_SIZE, DETAIL_SIZE = 16, 11
FAR = 0.1  # fraction of a panel; a label farther from its point is tied to it by a line
STYLE = {
    "font.size": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def draw(overview: Overview, path: str | Path, kinds: Sequence[str] = KINDS) -> tuple[Panel, ...]:
    """Draw a study's panels into a file and return them.

    Args:
        overview: the study, by all conditions.
        path: the file; its ending is the format: .png, .svg, .pdf.
        kinds: which of `KINDS` to draw.

    Raises:
        GradleakError: if matplotlib is missing, there is nothing to draw, or the file cannot be written.
    """
    panels = find_panels(overview, kinds)
    if not panels:
        raise GradleakError(f"there is nothing to draw for {', '.join(kinds)}: a line needs two points or more")
    try:
        from matplotlib import rc_context
    except ImportError:
        raise missing_extra("matplotlib", "plot", "drawing a study") from None
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = _figure(overview, panels)
        try:
            with write_atomically(Path(path), private=False) as temporary:
                figure.savefig(temporary, dpi=160, format=Path(path).suffix[1:] or "png")
        except ValueError as error:  # an ending that matplotlib does not know
            raise GradleakError(f"{path} cannot be written: {error}") from None
    return tuple(panels)


def _figure(overview: Overview, panels: Sequence[Panel]) -> Figure:
    """Return the figure of all panels, in a size that fits their texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    names = sorted({name for panel in panels for name in panel.lines}, key=_oldest_first)
    width = WIDTH + 0.11 * max(len(line) for name in names for line in name.split("\n"))
    wrapper = Wrapper()
    headline = wrapper.wrap(_headline(overview), TITLE_SIZE, width * columns * 0.97)
    details = [_details(panel, wrapper) for panel in panels]
    lines = max(text.count("\n") for text in details) * rows + headline.count("\n")
    size = (width * columns, HEIGHT * rows + 0.6 + 0.25 * lines)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12))
    FigureCanvasAgg(figure)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw_panel(axes, panel, details[number], names)
        if number % columns == 0:
            axes.set_ylabel(f"text recovered ({SCORE_TITLE}, %)")
    figure.suptitle(headline, x=0.01, ha="left", fontsize=TITLE_SIZE)
    return figure


def _headline(overview: Overview) -> str:
    held = {name: value for name, value in overview.same.items() if name in HELD and DEFAULTS.get(name) != value}
    where = ", ".join(in_words(name, value) for name, value in held.items())
    return f"{overview.study or 'study'}: what an attacker reads back" + (f"  ({where})" if where else "")


def _details(panel: Panel, wrapper: Wrapper) -> str:
    """Return the text below a panel's title, wrapped to the panel's width."""
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
        _draw_line(axes, points, names.index(name), connected=bool(panel.ticks))
    if panel.ticks:
        _label_lines(axes, panel, names)
    else:
        _label_points(axes, panel)


def _draw_line(axes: Axes, points: Sequence[Point], number: int, connected: bool) -> None:
    """Draw an attack's points with their intervals, as a line with a band or as single points with bars."""
    colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
    places = [point.place for point in points]
    scores = [point.row.scores[SCORE] for point in points]
    low, high = [score.low for score in scores], [score.high for score in scores]
    if connected:
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    else:
        axes.vlines(places, low, high, color=colour, alpha=0.3, linewidth=2)
    line = "-" if connected else "none"
    means = [score.mean for score in scores]
    axes.plot(places, means, color=colour, marker=marker, linestyle=line, linewidth=2.5, markersize=8)


def _set_scale(axes: Axes, panel: Panel) -> None:
    """Extend the x axis to the best possible utility: the right edge means useful, not most useful of these."""
    best = 100.0 if "accuracy" in panel.axis else 1.0
    worst = min(point.place for points in panel.lines.values() for point in points)
    axes.set_xlim(min(0.0, worst) - 0.06 * best, 1.06 * best)


def _label_lines(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    """Write each line's name at its right end, without overlaps."""
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
    """Write each defense beside its point, on the first side where it overlaps nothing."""
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
