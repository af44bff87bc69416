"""What a guess at a batch starts from: lengths and labels, as known, as read from the update, or to be searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradleak.exchange import Victim
from gradleak.leakage.labels import known_labels
from gradleak.targets import Target

Lengths = tuple[list[list[int]], str | None]
"""Lengths to start from `[starts][sequences]`, and a note where they were not known."""


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of one victim's batch.

    Attributes:
        lengths: the lengths to start from `[starts][sequences]`.
        labels: the classes of the sequences; None if they must be searched.
        notes: a line for each fact that was not known.
    """

    lengths: list[list[int]]
    labels: Sequence[int] | None
    notes: tuple[str, ...]

    @property
    def batching_key(self) -> tuple[int, bool]:
        """What victims must share to be optimised as one tensor: the number of starts, and whether labels are known."""
        return len(self.lengths), self.labels is None


def assume(target: Target, victim: Victim, lengths: Callable[[Target, Victim], Lengths]) -> Assumptions:
    """Infer what is not known of a victim's batch; a second call with the same rule returns what the first one found.

    Args:
        target: the model.
        victim: the update under attack.
        lengths: the rule that infers its lengths.
    """
    if lengths not in victim.inferred:
        tried, length_note = lengths(target, victim)
        labels, label_note = known_labels(target, victim, any_order=True)
        size_note = None if victim.knowledge.sequences else "batch size not told: 1 assumed"
        notes = tuple(note for note in (size_note, length_note, label_note) if note)
        victim.inferred[lengths] = Assumptions(tried, labels, notes)
    found: Assumptions = victim.inferred[lengths]
    return found
