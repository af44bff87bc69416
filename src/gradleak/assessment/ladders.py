"""Defenses in units that mean something, each a ladder of strengths from mild to strong.

Noise is given relative to the update's own size: 1 means noise whose L2 norm equals that of the update. DP-SGD clips
each example to the median norm and adds noise in the same unit. The rungs are fixed: a bisection can be repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradleak.assessment.subject import Subject
from gradleak.federation import WireFormat

NOISE = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0)
"""Norm of the noise over that of the update."""

STRONG_NOISE = (*NOISE, 100.0, 300.0)
KEPT = (0.5, 0.3, 0.1, 0.05, 0.03, 0.01, 0.005, 0.003, 0.001, 0.0003, 0.0001)
"""Share of the entries that pruning sends."""

CLIPPED = (0.5, 0.1, 0.01)
"""Largest norm over the update's own norm."""

FORMATS: tuple[tuple[WireFormat, str], ...] = (
    ("fp16", "float16"),
    ("bf16", "bfloat16"),
    ("int8", "int8 by blocks"),
    ("int8-tensor", "int8, one scale a tensor"),
)


@dataclass(frozen=True)
class Rung:
    """One strength of a defense.

    Attributes:
        place: position on the chart's axis.
        label: the strength in short, on that axis.
        name: the defense with its strength, in words.
        defense: as on the command line; None if what is sent changes instead.
        send: number format that is sent; None for the user's own.
        multiplier: noise multiplier of DP-SGD, for ε.
    """

    place: float
    label: str
    name: str
    defense: str | None = None
    send: WireFormat | None = None
    multiplier: float | None = None

    @property
    def option(self) -> str:
        """The option of the command line that sets it."""
        return f"--send {self.send}" if self.defense is None else f"--defense {self.defense}"


@dataclass(frozen=True)
class Ladder:
    """A defense at several strengths.

    Attributes:
        name: short name, as in the record.
        title: in words.
        unit: title of the chart's axis.
        cheapness: rank among defenses by what they usually cost in training, 0 the cheapest; used where the price
            cannot be measured.
        rungs: from mild to strong.
        first: whether it must come before the user's own defenses.
        patient: whether text under it is usually read, or not, long before the time is up: it then gets more of it.
    """

    name: str
    title: str
    unit: str
    cheapness: int
    rungs: tuple[Rung, ...]
    first: bool = False
    patient: bool = False

    def beside(self, own: tuple[str, ...], rung: Rung) -> tuple[tuple[str, ...], WireFormat | None]:
        """Return the defenses of a rung together with the user's own, and the number format that is sent."""
        if rung.defense is None:
            return own, rung.send
        return ((rung.defense, *own) if self.first else (*own, rung.defense)), None


def ladders(subject: Subject, batch_size: int) -> tuple[Ladder, ...]:
    """Return all ladders for updates of this size, those that take least time first."""
    return (
        Ladder("precision", "lower precision", "number format sent", 0, _formats(), patient=True),
        Ladder("clip", "clipping", "largest norm, share of the update's own", 1, _clipped(subject), patient=True),
        Ladder("sign", "signs only", "", 2, (Rung(0.0, "sign", "signs only", "sign"),), patient=True),
        Ladder("prune", "pruning", "share of entries that is not sent", 3, _pruned()),
        Ladder("noise", "Gaussian noise", "norm of the noise over that of the update", 4, _noised(subject)),
        Ladder(
            "dpsgd", "DP-SGD", "norm of the noise over that of the update", 5, _private(subject, batch_size), first=True
        ),
    )


def _formats() -> tuple[Rung, ...]:
    return tuple(Rung(float(place), name, f"sent as {words}", send=name) for place, (name, words) in enumerate(FORMATS))


def _clipped(subject: Subject) -> tuple[Rung, ...]:
    return tuple(
        Rung(
            -math.log10(share), f"{share:g}", f"clipped to {share:.0%} of the norm", f"clip:{subject.norm * share:.4g}"
        )
        for share in CLIPPED
    )


def _pruned() -> tuple[Rung, ...]:
    return tuple(
        Rung(
            -math.log10(kept), f"{1 - kept:.4g}", f"pruning, {100 * (1 - kept):.4g} % not sent", f"prune:{1 - kept:.6g}"
        )
        for kept in KEPT
    )


def _noised(subject: Subject) -> tuple[Rung, ...]:
    return tuple(
        Rung(
            math.log10(ratio),
            f"{ratio:g}",
            f"noise, {ratio:g} × the update",
            f"noise:{ratio * subject.norm / subject.root:.4g}",
        )
        for ratio in NOISE
    )


def _private(subject: Subject, batch_size: int) -> tuple[Rung, ...]:
    """Return DP-SGD: examples clipped to their median norm C; noise relative to a mean of that norm."""
    norm = subject.example_norm
    return tuple(
        Rung(
            math.log10(ratio),
            f"{ratio:g}",
            f"DP-SGD, noise {ratio:g} × the update",
            f"dpsgd:{norm:.4g},{ratio * norm / subject.root:.4g}",
            multiplier=ratio * batch_size / subject.root,
        )
        for ratio in STRONG_NOISE
    )


@dataclass
class Bisection:
    """Finds the mildest rung of a ladder at which leakage has ended, with as few trials as possible.

    Leakage is assumed to fall with strength; where it does not, the result is still a rung that was itself measured.

    Attributes:
        count: number of rungs.
        top_first: try the strongest rung first: a defense that leaks there is not tried further.
        low: the strongest rung known to leak; -1 for none.
        high: the mildest rung known to hold; None for none.
    """

    count: int
    top_first: bool = True
    low: int = -1
    high: int | None = None

    @property
    def next(self) -> int | None:
        """The rung to try; None if the answer is known."""
        if self.high is None and self.top_first:
            return self.count - 1 if self.low < self.count - 1 else None
        high = self.count if self.high is None else self.high
        return (self.low + high) // 2 if high - self.low > 1 else None

    @property
    def begun(self) -> bool:
        """Whether any rung was tried."""
        return self.low >= 0 or self.high is not None

    @property
    def leaks_at_strongest(self) -> bool:
        """Whether even the strongest rung leaks."""
        return self.high is None and self.low == self.count - 1

    def see(self, rung: int, leaks: bool) -> None:
        """Take the result of a rung."""
        if leaks:
            self.low = max(self.low, rung)
        else:
            self.high = rung if self.high is None else min(self.high, rung)
