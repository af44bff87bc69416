"""`Thresholds`: the scores that a client does not accept, as `rougeL=20`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradleak.errors import GradleakError, unknown_name
from gradleak.metrics import SCORE_NAMES


@dataclass(frozen=True)
class Thresholds:
    """The largest accepted scores by name, from 0 to 100."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str | None, option: str = "refuse_above") -> Thresholds:
        """Read `rougeL=20` or `rouge1=30,exact=0`; None accepts everything.

        Raises:
            GradleakError: if there is no such score, or the number is none from 0 to 100.
        """
        if not isinstance(text, str | None):
            raise GradleakError(f"{option} takes SCORE=NUMBER from 0 to 100, as rougeL=20, not {text!r}")
        limits: dict[str, float] = {}
        for part in (text or "").split(",") if text else ():
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in SCORE_NAMES:
                raise unknown_name(f"score of {option}", name, SCORE_NAMES)
            try:
                limits[name] = float(value)
            except ValueError:
                limits[name] = -1.0
            if not 0 <= limits[name] <= 100:
                raise GradleakError(f"{option} takes SCORE=NUMBER from 0 to 100, as rougeL=20, not '{part}'")
        return cls(limits)

    def exceeded(self, scores: Mapping[str, float]) -> str | None:
        """Return which score is above its limit, in words; None if none is."""
        for name, limit in self.limits.items():
            if scores.get(name, 0.0) > limit:
                return f"{name} {scores[name]:.1f} is above {limit:g}"
        return None
