"""Read a small difference of weights by peeling: what was read is subtracted, and the rest restored and read again.

Float32 weights hide many entries of a small step of SGD, and low rank restores them the better the fewer tokens there
are (`leakage/restoration.py`). The gradients of sentences that fit are known to all digits: without them the rest has
fewer tokens, the same rounding, and shows words that the whole did not. When all sentences are found, each in turn is
held against what the others leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf

import torch

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.rounded.reader import Guesses, RoundedReading, read_rounded
from gradleak.exchange import FedAvg, Protocol
from gradleak.leakage.noise_floor import NoiseFloor
from gradleak.leakage.proof import REPLAYED_WHOLE
from gradleak.leakage.recompute import batch_gradient
from gradleak.leakage.replay import can_replay, replay_difference
from gradleak.simulation.training import step_batches

READING, SEARCH = 0.25, 0.5
"""Shares of the time left for completing sentences from the row space, and for searching their words."""

ALONE_STARTS = 60
"""Skeletons that are completed at most where one sentence is read by itself."""

Search = Callable[[ObservedUpdate, int], Sequence[Sequence[int]]]
"""Returns so many sentences that are near to an update."""


def number_of_equal_parts(training: FedAvg, counts: Iterable[int | None]) -> int | None:
    """Return how many texts a client trained on if every one has the same part in the difference of its weights.

    Args:
        training: the protocol.
        counts: what is known or guessed, the most certain first. A count by rank may miss texts, so the number that
            fills all steps comes last.

    Returns:
        the first of these numbers with which all parts are equal; None if there is none.
    """
    plain = training.optimizer == "sgd" and training.schedule == "constant"
    if not plain or training.momentum or training.clip or training.weight_decay:
        return None
    filled = training.steps * training.batch * training.accumulate if training.steps and training.batch else None
    most = filled or inf
    return next((count for count in (*counts, filled) if count and count <= most and _are_equal(training, count)), None)


def _are_equal(training: FedAvg, count: int) -> bool:
    """Return whether small steps take each of so many texts equally often, in mini-batches of equal size."""
    if (training.batch or count) > count:
        return False
    parts = [0.0] * count
    for micro_batches in step_batches(training, count, torch.Generator().manual_seed(0)):
        rows = [row for batch in micro_batches for row in batch.tolist()]
        for row in rows:
            parts[row] += 1 / len(rows)
    return max(parts) - min(parts) < 1e-9


class Peeling:
    """Finds sentence after sentence.

    Args:
        observed: the update, restored.
        count: the number of sentences.
        longest: the greatest number of tokens of a sentence.
        starts: how many skeletons are completed at most in one round.
        search: finds sentences where the row space does not show them.
    """

    def __init__(self, observed: ObservedUpdate, count: int, longest: int, starts: int, search: Search) -> None:
        self._observed, self._count, self._longest = observed, count, longest
        self._starts, self._search = starts, search
        self._known: dict[Sentence, int] = {}
        self._near: dict[Sentence, int] = {}

    def run(self) -> RoundedReading:
        """Return the sentences; the last of them are near misses if not all were found."""
        rest, deadline = self._observed, self._observed.deadline
        while not deadline.passed and len(self._known) < self._count:
            if not self._read(rest, None, thorough=False):
                guesses = self._guessed(rest)
                if not self._read(rest, guesses, thorough=False) and not self._read(rest, guesses, thorough=True):
                    break
            rest = self.without(self._known) if len(self._known) < self._count else rest
        if len(self._known) == self._count:
            self._read_each_again()
        certain = len(self._known)
        found = {**self._known, **self._near} if certain < self._count else self._known
        return RoundedReading(
            list(found)[: self._count], list(found.values())[: self._count], certain, certain == self._count
        )

    def _guessed(self, rest: ObservedUpdate) -> Guesses:
        """Return sentences that are near to what is left, and all words that they have."""
        missing = self._count - len(self._known)
        near = [tuple(ids) for ids in self._search(replace(rest, deadline=rest.deadline.share(SEARCH)), missing)]
        words = torch.tensor(sorted({token for ids in (*near, *self._near) for token in ids}))
        return Guesses([*near, *self._near], words)

    def _read(self, rest: ObservedUpdate, guesses: Guesses | None, *, thorough: bool) -> bool:
        """Read what is left, and return whether a further sentence fits."""
        timed = replace(rest, deadline=self._observed.deadline.share(READING))
        missing = self._count - len(self._known)
        found = read_rounded(timed, missing, self._longest, self._starts, guesses, thorough=thorough)
        pairs = list(zip(found.sentences, found.labels, strict=True))[:missing]
        fresh = {ids: label for ids, label in pairs[: found.certain] if ids not in self._known}
        self._known |= fresh
        self._near = {ids: label for ids, label in pairs[found.certain :] if ids not in self._known}
        return bool(fresh)

    def _read_each_again(self) -> None:
        """Read each sentence once more without the others, the longest first, until the client can be replayed."""
        difference = self._replayed(self._known)
        for sentence in sorted(self._known, key=len, reverse=True):
            if difference < REPLAYED_WHOLE or self._observed.deadline.passed:
                return
            others = {ids: label for ids, label in self._known.items() if ids != sentence}
            alone = self.without(others)
            words = torch.tensor(sorted(set(sentence)))
            found = read_rounded(alone, 1, self._longest, ALONE_STARTS, Guesses([sentence], words))
            for ids, label in zip(found.sentences[:1], found.labels[:1], strict=True):
                other = {**others, ids: label}
                nearer = self._replayed(other)
                if len(other) == self._count and nearer < difference:
                    self._known, difference = other, nearer
                    self._observed.report([torch.tensor(own) for own in other], difference)

    def _replayed(self, texts: dict[Sentence, int]) -> float:
        observed = self._observed
        if not can_replay(observed.protocol):
            return torch.inf
        return replay_difference(observed.target, observed.as_sent, list(texts.items()), observed.protocol)

    def without(self, texts: dict[Sentence, int]) -> ObservedUpdate:
        """Return what some sentences leave of the update, restored, as an update of the others."""
        observed = self._observed
        rest = {name: tensor.double() for name, tensor in observed.as_sent.items()}
        for ids, label in texts.items():
            own = batch_gradient(observed.target, [ids], [label], list(rest))
            rest = {name: tensor - own[name].double() / self._count for name, tensor in rest.items()}
        gradient = {name: tensor.to(observed.as_sent[name]) for name, tensor in rest.items()}
        found = replace(observed, gradient=gradient, floors={}, sent=None).restored
        scale = self._count / (self._count - len(texts))
        scaled = {name: scale * tensor for name, tensor in found.gradient.items()}
        floors = {name: NoiseFloor(scale * floor.rows, floor.columns) for name, floor in found.floors.items()}
        return replace(found, gradient=scaled, sent=scaled, floors=floors, protocol=Protocol(), progress=None)
