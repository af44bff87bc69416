"""`ForestReading`: what forest reads from one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.leakage.proof import Proof

ProgressCallback = Callable[[Sequence[Sequence[int]], float], None]
"""Called with the texts so far and the fraction of the update that they leave."""


@dataclass
class ForestReading:
    """The texts read from one update.

    Attributes:
        texts: token ids of each.
        labels: their classes; None for a language model, or if not determined.
        left: the fraction of the update that is not explained.
        notes: one line for each fact.
        proof: what the update proves.
        settled: whether the update was read to the end, though it may prove nothing.
    """

    texts: list[Prefix] = field(default_factory=list)
    labels: list[int] | None = None
    left: float = 1.0
    notes: list[str] = field(default_factory=list)
    proof: Proof = field(default_factory=Proof)
    settled: bool = False
