"""The panels of a study's figure: leakage against noise, pruning, batch size, dropout and utility. Drawn by `plots`.

There is a panel wherever the records have at least two points for it. In each panel one condition varies along the
x axis, and all others are held at one setting: the one with the most points, named below the panel's title.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.errors import unknown_name
from gradleak.studies.report.conditions import CLIENT_CONDITIONS, NO_DEFENSE, attack_label, in_words, strength
from gradleak.studies.report.rows import Row
from gradleak.studies.report.summary import Overview

KINDS = ("leakage-noise", "leakage-pruning", "leakage-batch-size", "leakage-dropout", "leakage-utility")
NOISES = {"noise": "Gaussian noise (σ)", "laplace": "Laplace noise (b)", "dpsgd": "DP-SGD noise (σ)"}
PRUNINGS = {
    "prune": "share pruned",
    "prune-global": "share pruned, of the whole update",
    "mask": "share masked at random",
}
HELD = ("target", "dataset", "batch_size", *CLIENT_CONDITIONS, "defense")
"""The conditions that are held at one setting in a panel, except the one that varies."""
SCORE, SCORE_TITLE = "rouge1", "ROUGE-1"
ENOUGH_ATTACKED, ENOUGH_TESTED = 30, 100
"""With fewer sentences no defense is called useful and private."""


@dataclass(frozen=True)
class Point:
    """A row's position on the x axis, and a label."""

    place: float
    row: Row
    word: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel of a figure.

    Attributes:
        title: the condition that varies.
        detail: the setting of the others, as far as they vary in the study.
        axis: label of the x axis.
        ticks: labels at the positions 0, 1, 2, … of the x axis; empty if it is a scale of numbers.
        lines: the points of each attack, from left to right.
        sample: the number of sentences behind the points.
        verdict: label of the corner of useful and private defenses; empty if there were too few sentences.
    """

    title: str
    detail: str
    axis: str
    ticks: tuple[str, ...]
    lines: Mapping[str, tuple[Point, ...]]
    sample: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Axis:
    """The x axis of a panel: its title and label, the condition, and position and label of each of its values."""

    title: str
    label: str
    condition: str
    tick: Callable[[Any], tuple[float, str]]


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
        for family, label in families.items():
            among = [row for row in rows if _family(row) in (NO_DEFENSE, family)]
            axis = Axis(title, label, "defense", lambda value: (strength(value), _strength_label(value)))
            panels += _panel(among, varied, axis)
        return panels

    return find


def _batch_panels(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
    return _panel(
        rows, varied, Axis("Batch size", "sentences per update", "batch_size", lambda size: (size, str(size)))
    )


def _dropout_panels(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
    return _panel(rows, varied, Axis("Dropout", "dropout while training", "dropout", _dropout_tick))


def _dropout_tick(dropout: float) -> tuple[float, str]:
    """Return position and label of a dropout: the model's rate (True), none, or another rate."""
    return dropout, "off" if not dropout else "on" if dropout is True else f"{dropout:g}"


def _panel(rows: Sequence[Row], varied: Sequence[str], axis: Axis) -> list[Panel]:
    """Return the panel of one condition, or none if fewer than two of its values occur."""
    lines, detail = _lines([row for row in rows if row.conditions[axis.condition] is not None], axis.condition, varied)
    ticks = sorted({axis.tick(row.conditions[axis.condition]) for found in lines.values() for row in found})
    if len(ticks) < 2:
        return []
    drawn = {
        name: tuple(
            sorted(
                (Point(ticks.index(axis.tick(row.conditions[axis.condition])), row) for row in found),
                key=lambda point: point.place,
            )
        )
        for name, found in lines.items()
    }
    counts = sorted({point.row.different for points in drawn.values() for point in points})
    sample = f"sentences for each point: {' to '.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))}"
    return [Panel(axis.title, detail, axis.label, tuple(word for _, word in ticks), drawn, sample)]


def _utility_panels(rows: Sequence[Row], varied: Sequence[str]) -> list[Panel]:
    """Return the panel of leakage by the strongest attack against utility, with one point for each defense."""
    measured = [row for row in rows if row.utility is not None]
    lines, detail = _lines(measured, "defense", varied)
    no_mcc = all(row.utility is None or not row.utility.mcc for row in measured)
    strongest = _strongest(lines)
    leaders = {name.partition("\n")[0] for name, _ in strongest.values()}
    drawn: dict[str, tuple[Point, ...]] = {}
    for defense, (name, row) in strongest.items():
        place = _utility(row, no_mcc)
        if place is not None:
            attack = f" ({attack_label(row.conditions['attack'])})" if len(leaders) > 1 else ""
            drawn[name] = (*drawn.get(name, ()), Point(place, row, f"{defense}{attack}"))
    points = [point for found in drawn.values() for point in found]
    if len({point.place for point in points}) < 2:
        return []
    axis = "accuracy of the trained model (%)" if no_mcc else "usefulness of the trained model (MCC)"
    leader = f"strongest attack: {leaders.pop()}" if len(leaders) == 1 else "strongest attack"
    details = ", ".join(filter(None, [detail, leader]))
    return [Panel("Leakage and usefulness", details, axis, (), drawn, *_sample_and_verdict(points))]


def _strongest(lines: Mapping[str, Sequence[Row]]) -> dict[str, tuple[str, Row]]:
    """Return for each defense the name of the line that recovers most, and its row."""
    strongest: dict[str, tuple[str, Row]] = {}
    for name, row in ((name, row) for name, found in lines.items() for row in found):
        best = strongest.get(row.conditions["defense"])
        if best is None or row.scores[SCORE].mean > best[1].scores[SCORE].mean:
            strongest[row.conditions["defense"]] = name, row
    return strongest


def _sample_and_verdict(points: Sequence[Point]) -> tuple[str, str]:
    """Return the smallest numbers of sentences behind the points in words, and whether they allow a verdict."""
    attacked = min(point.row.different for point in points)
    tested = min((point.row.utility.tested or 0) if point.row.utility else 0 for point in points)
    sample = f"{attacked} attacked and {tested or 'an unknown number of'} test sentences"
    if attacked >= ENOUGH_ATTACKED and tested >= ENOUGH_TESTED:
        return sample, "useful and private"
    return f"{sample}: too few to judge a defense ({ENOUGH_ATTACKED} and {ENOUGH_TESTED})", ""


FINDERS: dict[str, Finder] = {
    "leakage-noise": _defense_panels(NOISES, "Noise"),
    "leakage-pruning": _defense_panels(PRUNINGS, "Pruning"),
    "leakage-batch-size": _batch_panels,
    "leakage-dropout": _dropout_panels,
    "leakage-utility": _utility_panels,
}


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
    named = [name for name in held if name in varied and chosen]
    detail = ", ".join(in_words(name, chosen[0].conditions[name]) for name in named)
    return {name: found for name, found in lines.items() if len(found) > 1}, detail


def _points(rows: Sequence[Row], condition: str) -> tuple[int, int]:
    return len({str(row.conditions[condition]) for row in rows}), len(rows)


def _line_name(row: Row, rows: Sequence[Row]) -> str:
    """Return the attack's name, and the settings that distinguish it from other lines of the same attack."""
    rivals = [other.conditions for other in rows if other.conditions["attack"] == row.conditions["attack"]]
    defaults: dict[str, Any] = {"preset": "paper", "settings": {}, "knowledge": None}  # not named
    apart = [
        name
        for name, value in defaults.items()
        if row.conditions[name] != value and any(other[name] != row.conditions[name] for other in rivals)
    ]
    return "\n".join(
        [attack_label(row.conditions["attack"]), *(in_words(name, row.conditions[name]) for name in apart)]
    )


def _utility(row: Row, no_mcc: bool) -> float | None:
    """Return the MCC, or the accuracy in per cent if no row has an MCC."""
    if row.utility is None or not no_mcc:
        return None if row.utility is None else row.utility.mcc
    return None if row.utility.accuracy is None else 100 * row.utility.accuracy


def _family(row: Row) -> str:
    defense = str(row.conditions["defense"])
    return defense if "+" in defense else defense.partition(":")[0]


def _strength_label(defense: str) -> str:
    return "none" if defense == NO_DEFENSE else f"{strength(defense):g}"
