"""Positions of text in a figure: lines wrapped to a width, and labels without overlaps. Used by `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def _renderer() -> Any:  # noqa: ANN401 - matplotlib is imported where it is used
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, 72)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Wrapper:
    """Wraps text, measured in matplotlib's current font."""

    _agg: Any = field(default_factory=_renderer)

    def wrap(self, text: str, size: float, width: float) -> str:
        """Return the text in lines of at most `width` inches at a font size in points; words too long are split."""
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".lstrip()
            if self._width(longer, size) <= width:
                lines[-1] = longer
                continue
            lines.append("")
            for letter in word:
                if self._width(lines[-1] + letter, size) > width:
                    lines.append("")
                lines[-1] += letter
        return "\n".join(line for line in lines if line)

    def _width(self, text: str, size: float) -> float:
        from matplotlib.font_manager import FontProperties

        points, _, _ = self._agg.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
        return float(points) / 72


Box = tuple[float, float, float, float]  # left, bottom, right, top, as fractions of the panel


def _boxes(x: float, y: float, width: float, height: float = 0.07) -> list[Box]:
    """Return the candidate boxes of a label beside a point: left, right, above, below, and at the corners."""
    across = (-width / 2 - 0.04, width / 2 + 0.04)
    middles = [*((x + shift, y) for shift in across), (x, y + 0.09), (x, y - 0.09)]
    middles += [(x + shift, y + rise) for rise in (0.06, -0.06, 0.12, -0.12, 0.18, -0.18) for shift in across]
    return [(a - width / 2, b - height / 2, a + width / 2, b + height / 2) for a, b in middles]


def best_box(x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """Return the first box beside a point in which a label overlaps nothing, or the one that overlaps least."""
    return min(_boxes(x, y, width), key=lambda box: (_covered(box, taken), not _inside(box)))


def _covered(box: Box, others: Sequence[Box]) -> float:
    """Return the area in which a box overlaps others, plus its excess over the panel's lower and left edges."""
    overlap = sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in others
    )
    return round(overlap + max(0.0, 0.01 - box[1]) + max(0.0, -box[0]), 4)


def _inside(box: Box) -> bool:
    return box[0] >= 0 and box[2] <= 1.15  # the figure makes room on the right


def spread(heights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Move sorted heights apart, as little as possible, until each has its gap."""
    placed: list[tuple[float, float, int]] = []  # blocks: middle, size, members
    for height, gap in zip(heights, gaps, strict=True):
        block = (height, gap, 1)
        while placed and block[0] - block[1] / 2 < placed[-1][0] + placed[-1][1] / 2:
            middle, size, members = placed.pop()
            count = members + block[2]
            block = ((middle * members + block[0] * block[2]) / count, size + block[1], count)
        placed.append(block)
    result: list[float] = []
    for middle, size, members in placed:
        bottom = middle - size / 2
        for gap in gaps[len(result) : len(result) + members]:
            result.append(bottom + gap / 2)
            bottom += gap
    sunk = max([0.0, *(gap / 2 - height for height, gap in zip(result[:1], gaps[:1], strict=True))])
    return [height + sunk for height in result] if sunk else result
