"""What sieve has read from one update, and the notes that describe it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gradleak.attacks.sieve.observed import Sentence
from gradleak.leakage.proof import Proof

MOST_LENGTHS = 16
"""Lengths of more sentences than this are given as a range."""


@dataclass
class Reading:
    """The texts read from one update so far.

    Attributes:
        sentences: token ids of each distinct text.
        copies: how often each was found, at least.
        labels: the class of each; None if not determined.
        loss: the fraction of the update that is not explained, or the distance of the gradients.
        notes: one line for each fact.
        proof: what the update proves.
        settled: whether the update was read to the end, though it may prove nothing.
        certain: how many sentences fit an update that was not read to the end.
    """

    sentences: list[Sentence] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    labels: list[int] | None = None
    loss: float = 1.0
    notes: list[str] = field(default_factory=list)
    proof: Proof = field(default_factory=Proof)
    settled: bool = False
    certain: int = 0

    def distinct(self) -> Reading:
        """Return the reading with each text once, and how often it was found."""
        copies: Counter[Sentence] = Counter()
        for sentence, count in zip(self.sentences, self.copies or [1] * len(self.sentences), strict=True):
            copies[sentence] += count
        labels, proof = self.labels, self.proof
        if labels is not None and len(labels) == len(self.sentences):
            pairs = set(zip(self.sentences, labels, strict=True))
            labels = [labels[self.sentences.index(sentence)] for sentence in copies]
            if len(pairs) > len(copies):  # a text that occurs with several labels is returned once, with one of them
                proof = replace(proof, labels_verified=False)
        return replace(self, sentences=list(copies), copies=list(copies.values()), labels=labels, proof=proof)

    def repeats(self) -> list[str]:
        """Return a note on texts that were found several times; none if all were found once."""
        if max(self.copies, default=1) < 2:
            return []
        counts = ", ".join(f"text {n} {c} times" for n, c in enumerate(self.copies, start=1) if c > 1)
        end = "; each was trained on at least once, maybe in several passes" if self.proof.verified else ""
        return [f"found several times: {counts}{end}"]


@dataclass
class DefendedReading:
    """The texts read from an update that a defense changed.

    Attributes:
        sentences: token ids of each text.
        labels: their classes; empty if not determined.
        distance: the cosine distance of their gradient from the update.
        settled: whether they leave nothing but noise of the update.
    """

    sentences: list[list[int]]
    labels: list[int]
    distance: float
    settled: bool = False


def overview(sentences: Sequence[Sentence]) -> str:
    """Return a note with the number of distinct sentences and their lengths."""
    lengths = sorted(map(len, dict.fromkeys(sentences)))
    if not lengths:
        return "no sentence found"
    if len(lengths) == 1:
        return f"1 sentence of {lengths[0]} tokens"
    if len(lengths) > MOST_LENGTHS:
        return f"{len(lengths)} sentences of {lengths[0]} to {lengths[-1]} tokens"
    return f"{len(lengths)} sentences of {', '.join(map(str, lengths[:-1]))} and {lengths[-1]} tokens"
