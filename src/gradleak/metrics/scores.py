"""What a sentence and a batch of sentences got, from 0 to 100."""

from __future__ import annotations

import math
from dataclasses import dataclass

SCORE_NAMES = ("rouge1", "rouge2", "rougeL", "exact", "token_accuracy")


@dataclass(frozen=True)
class Scores:
    """The scores of one sentence, each from 0 (nothing recovered) to 100 (all of it).

    Attributes:
        rouge1: F-measure of the words in common.
        rouge2: F-measure of the pairs of neighbouring words in common.
        rougeL: F-measure of the longest common subsequence of words.
        exact: 100 if the decoded texts are equal, else 0.
        token_accuracy: share of positions that hold the true token.
    """

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 (the field's own spelling)
    exact: float
    token_accuracy: float

    def as_dict(self) -> dict[str, float]:
        """Return the scores by name, in the order of `SCORE_NAMES`."""
        return {name: float(getattr(self, name)) for name in SCORE_NAMES}


ZERO = Scores(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class BatchScores:
    """The scores of a batch; each score of the batch is the average over its sentences.

    Attributes:
        sentences: One entry per reference.
        matches: For each reference the index of the reconstruction matched to it, or None.
    """

    sentences: tuple[Scores, ...]
    matches: tuple[int | None, ...]

    def _mean(self, name: str) -> float:
        values = [float(getattr(sentence, name)) for sentence in self.sentences]
        return math.fsum(values) / len(values)

    @property
    def rouge1(self) -> float:
        """ROUGE-1 averaged over the sentences."""
        return self._mean("rouge1")

    @property
    def rouge2(self) -> float:
        """ROUGE-2 averaged over the sentences."""
        return self._mean("rouge2")

    @property
    def rougeL(self) -> float:  # noqa: N802 (the field's own spelling)
        """ROUGE-L averaged over the sentences."""
        return self._mean("rougeL")

    @property
    def exact(self) -> float:
        """Percentage of sentences recovered word for word."""
        return self._mean("exact")

    @property
    def token_accuracy(self) -> float:
        """Token accuracy averaged over the sentences."""
        return self._mean("token_accuracy")

    def as_dict(self) -> dict[str, float]:
        """Return the averages by name, in the order of `SCORE_NAMES`."""
        return {name: self._mean(name) for name in SCORE_NAMES}
