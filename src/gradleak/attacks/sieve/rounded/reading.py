"""What the reader of rounded updates is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradleak.attacks.sieve.observed import Sentence


@dataclass
class RoundedReading:
    """Sentences read from a rounded update.

    Attributes:
        sentences: token ids of each.
        labels: the class of each.
        certain: how many of them, from the first on, fit the update; the others are guesses at what is missing.
        whole: whether their weights add up to that of a whole batch.
        misfits: how badly each fits.
    """

    sentences: list[Sentence] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    certain: int = 0
    whole: bool = False
    misfits: list[float] = field(default_factory=list)

    def split(self, most: int) -> tuple[dict[Sentence, int], dict[Sentence, int]]:
        """Return the first sentences with their classes: those that are certain, and guesses."""
        pairs = list(zip(self.sentences, self.labels, strict=True))[:most]
        return dict(pairs[: self.certain]), dict(pairs[self.certain :])


@dataclass(frozen=True)
class Guesses:
    """What else may be in a batch, though its row space does not show it.

    Attributes:
        sentences: near misses, to be edited.
        words: token ids.
        doubtful: whether sentences are edited though they fit: one with a wrong word may fit as well as others.
    """

    sentences: Sequence[Sentence]
    words: Tensor
    doubtful: bool = False
