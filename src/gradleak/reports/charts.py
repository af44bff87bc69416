"""The drawings of a report, from plain values; colours come from the page's style sheet, for light, dark and print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gradleak.reports.svg import LinearScale, drawing, fitting, label, line, path, tag

WIDTH = 330.0
LEFT, RIGHT, TOP, BOTTOM = 30.0, 10.0, 22.0, 38.0
LEAKAGE_HEIGHT, UTILITY_HEIGHT, GAP = 150.0, 62.0, 28.0
FULL = 100.0


@dataclass(frozen=True)
class ChartPoint:
    """A measured setting in a chart.

    Attributes:
        place: position on the x axis, in any unit.
        name: label on the x axis.
        mean: mean score over the sentences.
        least: smallest score of a sentence.
        most: largest score of a sentence.
        interval: 95 % interval of the mean; None with too few sentences.
        utility: accuracy or another share from 0 to 100; None if it was not measured.
        chosen: whether it is the recommended setting.
    """

    place: float
    name: str
    mean: float
    least: float
    most: float
    interval: tuple[float, float] | None = None
    utility: float | None = None
    chosen: bool = False


def leakage_chart(
    points: Sequence[ChartPoint],
    title: str,
    axis: str,
    *,
    limit: float,
    baseline: float | None = None,
    metric: str = "utility",
) -> Markup:
    """Draw leakage against the x axis, and utility below it if any point has one.

    Args:
        points: in any order.
        title: the chart's title.
        axis: title of the x axis.
        limit: the score below which a setting counts as safe.
        baseline: utility without a defense.
        metric: what utility is.
    """
    ordered = sorted(points, key=lambda point: point.place)
    measured = any(point.utility is not None for point in ordered)
    lower = UTILITY_HEIGHT + GAP if measured else 0.0
    height = TOP + LEAKAGE_HEIGHT + lower + BOTTOM
    across = _across(ordered)
    parts = [*_leakage(ordered, across, limit)]
    if measured:
        parts += _utility(ordered, across, baseline, metric)
    places = [(across(point.place), point.name) for point in ordered]
    foot = height - BOTTOM
    parts += [label(text, x, foot + 15, kind="tick") for x, text in fitting(places, LEFT - 8, WIDTH - 2)]
    parts.append(label(axis, (LEFT + WIDTH - RIGHT) / 2, foot + 31, kind="axis"))
    return drawing(WIDTH, height, title, _in_words(ordered), parts)


def _across(points: Sequence[ChartPoint]) -> LinearScale:
    places = [point.place for point in points]
    inset = 12.0 if len(set(places)) > 1 else 0.0
    return LinearScale(min(places), max(places), LEFT + inset, WIDTH - RIGHT - inset)


def _leakage(points: Sequence[ChartPoint], across: LinearScale, limit: float) -> list[Markup]:
    up = LinearScale(0.0, FULL, TOP + LEAKAGE_HEIGHT, TOP)
    parts = [label("ROUGE-L", LEFT, TOP - 8, "start", "axis")]
    for value in (0, 50, 100):
        parts += [
            line(LEFT, up(value), WIDTH - RIGHT, up(value), "grid"),
            label(str(value), LEFT - 6, up(value) + 4, "end", "tick"),
        ]
    parts += [
        line(LEFT, up(limit), WIDTH - RIGHT, up(limit), "limit"),
        label(f"{limit:g}", LEFT - 6, up(limit) + 4, "end", "tick limit-text"),
    ]
    parts.append(path([(across(point.place), up(point.mean)) for point in points], "trend"))
    for point in points:
        x = across(point.place)
        parts.append(line(x, up(point.least), x, up(point.most), "span"))
        parts += [line(x - 4, up(end), x + 4, up(end), "span") for end in (point.least, point.most)]
        if point.interval is not None:
            low, high = point.interval
            top, foot = up(high), up(low)
            parts.append(tag("rect", x=x - 4, y=top, width=8.0, height=max(1.0, foot - top), class_="interval"))
        kind = "mean above" if point.mean >= limit else "mean"
        parts.append(tag("circle", cx=x, cy=up(point.mean), r=4.5, class_=kind))
        if point.chosen:
            parts.append(tag("circle", cx=x, cy=up(point.mean), r=8.5, class_="chosen"))
    return parts


def _utility(points: Sequence[ChartPoint], across: LinearScale, baseline: float | None, metric: str) -> list[Markup]:
    top = TOP + LEAKAGE_HEIGHT + GAP
    up = LinearScale(0.0, FULL, top + UTILITY_HEIGHT, top)
    parts = [line(LEFT, up(0), WIDTH - RIGHT, up(0), "grid"), line(LEFT, up(FULL), WIDTH - RIGHT, up(FULL), "grid")]
    parts += [label(str(value), LEFT - 6, up(value) + 4, "end", "tick") for value in (0, 100)]
    parts.append(label(metric, LEFT, top - 7, "start", "axis"))
    if baseline is not None:
        parts.append(line(LEFT, up(baseline), WIDTH - RIGHT, up(baseline), "baseline"))
    known = [(across(p.place), up(p.utility)) for p in points if p.utility is not None]
    parts.append(path(known, "utility-trend"))
    parts += [tag("rect", x=x - 4, y=y - 4, width=8.0, height=8.0, class_="utility") for x, y in known]
    return parts


def _in_words(points: Sequence[ChartPoint]) -> str:
    return "; ".join(
        f"{point.name}: mean {point.mean:.0f}, from {point.least:.0f} to {point.most:.0f}"
        + ("" if point.utility is None else f", utility {point.utility:.0f}")
        for point in points
    )


def capacity_chart(rows: Sequence[tuple[str, float]], limits: Sequence[tuple[str, float]], title: str) -> Markup:
    """Draw tokens per update as bars on a logarithmic axis, with the limits that reading has as vertical lines.

    Args:
        rows: name and number of tokens of each bar.
        limits: name and number of tokens of each limit.
        title: the chart's title.
    """
    from math import log10

    values = [value for _, value in (*rows, *limits) if value > 0]
    left, step, top = 86.0, 24.0, 22.0
    across = LinearScale(0.0, log10(max(values) * 2.5), left, WIDTH - RIGHT)
    foot = top + step * len(rows)
    parts: list[Markup] = []
    for number, (name, value) in enumerate(rows):
        y, end = top + step * number, across(log10(max(1.0, value)))
        parts += [
            label(name, left - 8, y + 15, "end", "tick"),
            tag("rect", x=left, y=y + 4, width=max(2.0, end - left), height=step - 10, class_="bar"),
        ]
    for name, value in limits:
        x = across(log10(max(1.0, value)))
        parts.append(line(x, top - 4, x, foot, "limit"))
        parts.append(label(f"{name} {value:,.0f}", min(x + 30, WIDTH), top - 8, "end", "tick limit-text"))
    for number, (_, value) in enumerate(rows):  # on top of the limits' lines
        end = across(log10(max(1.0, value)))
        parts.append(label(f"{value:,.0f}", end + 5, top + step * number + 15, "start", "tick"))
    words = "; ".join(f"{name}: {value:,.0f} tokens" for name, value in rows)
    told = "; ".join(f"{name}: {value:,.0f}" for name, value in limits)
    return drawing(WIDTH, foot + 8, title, f"{words}. Limits: {told}", parts)


def rounds_chart(looks: Sequence[Mapping[str, Any]], title: str, *, most_clients: int = 24) -> Markup:
    """Draw rounds over time: a row for each client, a square for each round in which it was attacked.

    Args:
        looks: what was found of a client in a round, as in the record.
        title: the chart's title.
        most_clients: rows that are drawn; those with the highest scores come first.
    """
    worst: dict[str, float] = {}
    for look in looks:
        worst[look["client"]] = max(worst.get(look["client"], 0.0), _severity(look))
    clients = sorted(worst, key=lambda client: (-worst[client], client))[:most_clients]
    rounds = sorted({int(look["round"]) for look in looks})
    width, left, top, step = 660.0, 110.0, 8.0, 22.0
    across = LinearScale(rounds[0], rounds[-1], left + 14, width - 22) if rounds else LinearScale(0, 0, left, width)
    side = max(3.0, min(16.0, (width - left - 40) / max(1, len(rounds)) - 2))
    foot = top + step * len(clients)
    parts: list[Markup] = []
    for number, client in enumerate(clients):
        y = top + step * number + step / 2
        parts += [label(_short(client), left - 8, y + 4, "end", "tick"), line(left, y, width - 4, y, "grid")]
        for look in looks:
            if look["client"] == client:
                x = across(float(look["round"])) - side / 2
                kind = f"look {_kind(look)}"
                told = tag("title", f"round {look['round']}, client {client}: {look_words(look)}")
                parts.append(tag("rect", told, x=x, y=y - side / 2, width=side, height=side, class_=kind))
    ticks = [(across(float(number)), str(number)) for number in rounds]
    parts += [label(text, x, foot + 15, kind="tick") for x, text in fitting(ticks, left, width)]
    parts.append(label("round", (left + width) / 2, foot + 31, kind="axis"))
    words = f"{len(rounds)} rounds, {len(worst)} clients; text was read in {sum(_kind(x) == 'read' for x in looks)}"
    return drawing(width, foot + 38, title, words, parts)


def look_words(look: Mapping[str, Any]) -> str:
    """Return what was found of a client in a round, in words."""
    if look["status"] != "done":
        return str(look["status"])
    words = [] if look["rougeL"] is None else [f"ROUGE-L {look['rougeL']:.0f}"]
    words += ["proven"] if look["verified"] else []
    words += [f"{look['exact']} exact"] if look["exact"] else []
    words += [f"{look['words']} words returned, not proven"] if look["rougeL"] is None and not look["verified"] else []
    return ", ".join(words) or "nothing read"


def _severity(look: Mapping[str, Any]) -> float:
    return float(look["rougeL"] or 0.0) + (FULL if look["verified"] or look["exact"] else 0.0)


def _kind(look: Mapping[str, Any]) -> str:
    if look["status"] != "done":
        return "failed"
    if look["verified"] or look["exact"]:
        return "read"
    return "partly" if (look["rougeL"] or 0.0) >= 20.0 else "safe"


def _short(text: str) -> str:
    return text if len(text) <= 15 else f"{text[:14]}\N{HORIZONTAL ELLIPSIS}"
