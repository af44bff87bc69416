"""Elements, scales and axes of SVG drawings; every text and attribute is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

CHARACTER = 6.2
"""Width of a character of an axis label, in units of the drawing; enough for digits and lower-case letters."""


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; underscores in attribute names become hyphens, and attributes of None are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    return Markup(f"<{name}{written}>") + inside + Markup(f"</{name}>")


def _number(value: object) -> object:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def drawing(width: float, height: float, title: str, description: str, parts: Iterable[str]) -> Markup:
    """Return a whole drawing, which scales with the page and is read aloud as its title and description."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=f"{title}. {description}",
    )


@dataclass(frozen=True)
class LinearScale:
    """Maps values linearly to places of a drawing; values outside are moved to the nearest end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        if self.high <= self.low:
            return (self.start + self.end) / 2
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return self.start + share * (self.end - self.start)


def label(text: str, x: float, y: float, anchor: str = "middle", kind: str = "label") -> Markup:
    """Return a text; `anchor` is start, middle or end."""
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=kind)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=kind)


def path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """Return straight lines through points."""
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=kind)


def fitting(labels: Sequence[tuple[float, str]], low: float, high: float) -> list[tuple[float, str]]:
    """Return the labels that fit beside each other: the last one, the first one, then the others from the left.

    Args:
        labels: places and texts, sorted by place.
        low: the left end of the drawing, which no label crosses.
        high: the right end.
    """
    chosen: list[tuple[float, str]] = []
    for place, text in [*labels[-1:], *labels[:1], *labels[1:-1]]:
        half = len(text) * CHARACTER / 2
        middle = min(max(place, low + half), high - half)
        if all(abs(middle - other) > half + len(words) * CHARACTER / 2 + 4 for other, words in chosen):
            chosen.append((middle, text))
    return chosen
