"""`Knowledge`: what the attacker knows besides Target and Update; every attack takes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from gradleak.errors import GradleakError, unknown_name

FACTS = {
    "labels": "labels",
    "lengths": "lengths",
    "longest": "longest",
    "batch-size": "batch_size",
    "dropout": "dropout",
    "defense": "defenses",
}
"""Names that `--know` takes, with the field of `Knowledge` that each stands for."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Facts that the attacker knows; None means unknown.

    Attributes:
        labels: the class of each sequence.
        lengths: the number of tokens of each sequence, special tokens included.
        longest: the number of tokens of the longest sequence.
        batch_size: the number of sequences.
        dropout: the dropout rate that the client trains with (0 if it uses none).
        defenses: the defenses applied to the update, as on the command line (`noise:0.001`).
    """

    labels: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    longest: int | None = None
    batch_size: int | None = None
    dropout: float | None = None
    defenses: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "lengths", "defenses"):  # accept lists
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        counts = {len(value) for value in (self.labels, self.lengths) if value is not None}
        if self.batch_size is not None:
            counts.add(self.batch_size)
        if len(counts) > 1:
            raise GradleakError("labels, lengths and batch size speak of different numbers of sequences")
        if counts and min(counts) < 1:
            raise GradleakError("labels and lengths must name at least one sequence")
        if self.longest is not None and self.lengths is not None and self.longest != max(self.lengths):
            raise GradleakError(f"longest is {self.longest}, but the longest of the lengths is {max(self.lengths)}")

    @property
    def sequences(self) -> int | None:
        """The number of sequences, from the batch size, lengths or labels; None if none of them is known."""
        if self.batch_size is not None:
            return self.batch_size
        known = self.lengths or self.labels
        return len(known) if known is not None else None

    @property
    def told(self) -> tuple[str, ...]:
        """Names of the known facts."""
        return tuple(name for name, field in FACTS.items() if getattr(self, field) is not None)

    def only(self, facts: Iterable[str]) -> Knowledge:
        """Return the knowledge reduced to these facts."""
        kept = {fact_field(name) for name in facts}
        return replace(self, **{f.name: None for f in fields(self) if f.name not in kept})


def fact_field(name: str) -> str:
    """Return the field that a name of `--know` stands for."""
    if name not in FACTS:
        raise unknown_name("knowledge", name, FACTS)
    return FACTS[name]
