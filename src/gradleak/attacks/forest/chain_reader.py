"""Read the texts of an update with strong noise one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gradleak.attacks.forest.chains import ChainSearch
from gradleak.attacks.forest.judge import UpdateJudge
from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.attacks.forest.reading import ForestReading, ProgressCallback
from gradleak.attacks.forest.rounding import RowNoise
from gradleak.exchange import Deadline

MOST_TEXTS = 8
"""Texts of an update, at most."""

NEARER = 0.95
"""A further text reduces the distance from the update to this fraction, at least."""

MASKED = "the adapters' dropout counts as noise: the masks are not decoded, so that the texts are likely and not proven"
FLATTENED = "several steps of Adam leave little more than signs: texts were judged by a step on each guess"


@dataclass(frozen=True)
class ChainReader:
    """Finds texts until they explain the update as well as its noise lets them.

    Attributes:
        search: finds the next text.
        judge: the distance of texts from the update.
        noise: the noise of the update.
        prove: returns texts with what the update proves of them.
        progress: called with the texts so far.
    """

    search: ChainSearch
    judge: UpdateJudge
    noise: RowNoise
    prove: Callable[[list[Prefix]], ForestReading]
    progress: ProgressCallback

    def texts(self, deadline: Deadline) -> list[Prefix]:
        """Return the texts, as far as they are found by a deadline."""
        found: list[Prefix] = []
        left = 1.0
        while len(found) < MOST_TEXTS and not self._done(found, left) and not deadline.passed:
            beside = partial(self.judge.beside, found)
            text, distance = self.search.best(beside, self.search.inputs.target.max_length)
            if not self._done([*found, text], distance):
                text, distance = self.search.exchanged(text, beside)
            if not text or text in found or distance > NEARER * left:
                break
            found, left = [*found, text], distance
            self.progress(found, left)
            self.search.remove(text)
        return found

    def _done(self, texts: list[Prefix], distance: float) -> bool:
        """Return whether texts are as near as dropout lets the right ones be, or their training was repeated."""
        if not texts:
            return False
        if self.noise.dropout:
            return distance < 2 * (1 - (1 - self.noise.dropout) ** 0.5)
        return self.prove(texts).settled
