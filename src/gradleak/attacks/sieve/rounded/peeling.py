"""Read a small difference of weights by peeling: what was read is subtracted, and the rest restored and read again.

Float32 weights hide many entries of a small step of SGD, and low rank restores them the better the fewer tokens there
are (`leakage/restoration.py`). The gradients of sentences that fit are known to all digits: without them the rest has
fewer tokens, the same rounding, and shows words that the whole did not. When all sentences are found, each in turn is
held against what the others leave.

The row space shows few words of long sentences, and near misses are taken for right where it does. What all others
leave is an update of one sentence: those that fit worse than most are edited there, then searched by its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.batch_search import refine_with_contexts
from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.plain.sentence_search import common_tokens
from gradleak.attacks.sieve.rounded.reader import ALIKE, FAIR, GOOD, read_rounded
from gradleak.attacks.sieve.rounded.reading import Guesses, RoundedReading
from gradleak.attacks.sieve.rounded.weight_fit import WeightFit
from gradleak.exchange import FedAvg, Protocol
from gradleak.leakage.noise_floor import NoiseFloor
from gradleak.leakage.proof import REPLAYED_WHOLE
from gradleak.leakage.recompute import batch_gradient
from gradleak.leakage.replay import can_replay, nearest_order
from gradleak.leakage.restoration import KnownPart
from gradleak.simulation.training import step_batches

SUSPECT = 0.12
"""Misfit of sentences that are read again without the others before all are found, and first when all are."""

READING, SEARCH = 0.25, 0.5
"""Shares of the time left for completing sentences from the row space, and for searching their words."""

DOUBTFUL = 1.2
"""A sentence that fits worse than the median one by this factor may be a near miss."""

ALONE_STARTS = 60
"""Skeletons that are completed at most where one sentence is read by itself."""

Search = Callable[[ObservedUpdate, int], Sequence[Sequence[int]]]
"""Returns so many sentences that are near to an update."""


def number_of_equal_parts(training: FedAvg, counted: int | None) -> int | None:
    """Return how many texts a client trained on if every one has the same part in the difference of its weights.

    Args:
        training: the protocol.
        counted: their number, if it is known or was counted. A count by rank may miss texts, so the number that fills
            all steps is tried as well.

    Returns:
        the first of these numbers with which all parts are equal; None if there is none.
    """
    plain = training.optimizer == "sgd" and training.schedule == "constant"
    if not plain or training.momentum or training.clip or training.weight_decay:
        return None
    filled = training.steps * training.batch * training.accumulate if training.steps and training.batch else None
    most = filled or inf
    return next((count for count in (counted, filled) if count and count <= most and _are_equal(training, count)), None)


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
        self._misfits: dict[Sentence, float] = {}
        self._read_alone: set[Sentence] = set()
        self._searched_alone: set[tuple[Sentence, frozenset[Sentence]]] = set()
        self._searched_beside: set[Sentence] | None = None

    def run(self) -> RoundedReading:
        """Return the sentences; the last of them are near misses if not all were found."""
        rest, deadline = self._observed, self._observed.deadline
        while not deadline.passed and len(self._known) < self._count:
            near = self._near
            if any(self._ways(rest)):
                rest = self.without(self._known) if len(self._known) < self._count else rest
            elif self._near == near:
                break
        if len(self._known) == self._count:
            self._read_each_again(suspect_only=True)
            if not self._is_replayed() and not self._read_each_again(suspect_only=False):
                self._search_each_alone()
        certain = len(self._known)
        found = {**self._known, **self._near} if certain < self._count else self._known
        return RoundedReading(
            list(found)[: self._count], list(found.values())[: self._count], certain, certain == self._count
        )

    def _ways(self, rest: ObservedUpdate) -> Iterator[bool]:
        """Read what is left in one way after the other, the quickest first, and yield whether something was found."""
        yield self._read(rest, None, thorough=False)
        yield self._read_each_again(suspect_only=True)
        yield self._search_each_alone()
        guesses = self._guessed(rest)
        yield self._read(rest, guesses, thorough=False)
        yield self._read(rest, guesses, thorough=True)
        yield self._read_each_again(suspect_only=False)

    def _guessed(self, rest: ObservedUpdate) -> Guesses:
        """Return sentences that are near to what is left, and all words that they have."""
        near: list[Sentence] = []
        if self._searched_beside != self._known.keys():  # once is enough
            self._searched_beside = set(self._known)
            missing = self._count - len(self._known)
            in_time = replace(rest, deadline=rest.deadline.share(SEARCH))
            near = [tuple(ids) for ids in self._search(in_time, missing)]
        return Guesses([*near, *self._near], self._words_of(*near, *self._near))

    def _words_of(self, *guesses: Sentence) -> Tensor:
        """Return the words of some guesses, and of the sentences found: frequent words occur in most sentences."""
        return torch.tensor(sorted({token for ids in (*guesses, *self._known) for token in ids}))

    def _read(self, rest: ObservedUpdate, guesses: Guesses | None, *, thorough: bool) -> bool:
        """Read what is left, and return whether a further sentence fits."""
        timed = replace(rest, deadline=self._observed.deadline.share(READING))
        missing = self._count - len(self._known)
        found = read_rounded(timed, missing, self._longest, self._starts, guesses, thorough=thorough)
        certain, near = found.split(missing)
        fresh = {ids: label for ids, label in certain.items() if ids not in self._known}
        self._known |= fresh
        self._misfits |= dict(zip(found.sentences, found.misfits, strict=True))
        self._near = self._unlike({**near, **self._near})  # what was read last is nearest
        return bool(fresh)

    def _unlike(self, near: Mapping[Sentence, int]) -> dict[Sentence, int]:
        """Return the first near misses that are unlike each other and the sentences found: as many as are missing."""
        chosen: dict[Sentence, int] = {}
        for sentence in near:
            if all(common_tokens(sentence, other) < ALIKE for other in (*self._known, *chosen)):
                chosen[sentence] = near[sentence]
        return dict(list(chosen.items())[: self._count - len(self._known)])

    def _read_each_again(self, *, suspect_only: bool) -> bool:
        """Read sentences once more without the others, those that fit worst first, and return whether that helped.

        Args:
            suspect_only: whether those that fit well are left as they are.
        """
        changed = False
        for sentence in sorted(self._known, key=lambda ids: self._misfits[ids], reverse=True):
            if self._observed.deadline.passed or (suspect_only and self._misfits[sentence] < SUSPECT):
                break
            if sentence not in self._read_alone:
                before, self._known = self._known, self.read_again(self._known, sentence)
                self._read_alone |= {sentence, *(self._known.keys() - before.keys())}
                changed |= self._known != before
        return changed

    def read_again(self, texts: Mapping[Sentence, int], sentence: Sentence) -> dict[Sentence, int]:
        """Return texts and their classes with what is read without the others in the place of one of them."""
        others = {ids: label for ids, label in texts.items() if ids != sentence}
        alone = replace(self.without(others), deadline=self._observed.deadline.share(READING))
        missing = self._count - len(others)
        guesses = Guesses([sentence], self._words_of(sentence), doubtful=True)
        fair = GOOD if missing == 1 else FAIR
        found = read_rounded(alone, missing, self._longest, ALONE_STARTS, guesses, thorough=missing == 1, fair=fair)
        certain, _ = found.split(missing)
        self._misfits |= dict(zip(found.sentences, found.misfits, strict=True))
        return dict(texts) if not certain or sentence in certain else others | certain

    def _search_each_alone(self) -> bool:
        """Search sentences that may be near misses in what all others leave, and return whether that found better ones.

        The nearest are searched first, since each that is found makes the others clearer.
        """
        if 2 * len(self._known) < self._count:
            return False
        misfits = {ids: self._misfits.get(ids, inf) for ids in (*self._known, *self._near)}
        most = DOUBTFUL * median(misfits[ids] for ids in self._known)
        changed = False
        for sentence in sorted(misfits, key=misfits.__getitem__):
            texts = dict([*self._known.items(), *self._near.items()][: self._count])  # what was near may be found since
            if sentence not in texts:
                continue
            beside = sentence, frozenset(texts.keys() - {sentence})
            clear = sentence in self._known and misfits[sentence] < most
            if self._observed.deadline.passed or clear or beside in self._searched_alone:
                continue
            self._searched_alone.add(beside)
            found = self.search_again(texts, sentence)
            if found is not None:
                changed = True
                better, label = found
                for group in (self._known, self._near):
                    group.pop(sentence, None)
                (self._known if self._misfits[better] < GOOD else self._near)[better] = label
        return changed

    def search_again(self, texts: Mapping[Sentence, int], sentence: Sentence) -> tuple[Sentence, int] | None:
        """Return a sentence that fits what all others of some texts leave better than one of them, and its class.

        It is edited first, then searched from nothing. None if that leads to no better one.
        """
        alone, fit = self._fit_alone(texts, sentence)
        timed = replace(alone, deadline=self._observed.deadline.share(SEARCH), longest=self._longest)
        edited = refine_with_contexts(timed, sentence)
        better = min([sentence, *map(tuple, edited.sentences if edited else ())], key=fit.misfit)
        if better == sentence:
            better = min([sentence, *map(tuple, self._search(timed, 1))], key=fit.misfit)
        if better in texts:
            return None
        self._misfits[better] = fit.misfit(better)
        fit.keep([better])
        return better, fit.weights[better][0]

    def _fit_alone(self, texts: Mapping[Sentence, int], sentence: Sentence) -> tuple[ObservedUpdate, WeightFit]:
        """Return what all other texts leave of the update, and how well sentences fit that."""
        alone = self.without({ids: label for ids, label in texts.items() if ids != sentence})
        return alone, WeightFit(alone, Remainder.of(alone))

    def _is_replayed(self) -> bool:
        """Order the sentences as the client has them, and return whether its training on them gives the update."""
        observed = self._observed
        if not can_replay(observed.protocol):
            return False
        deadline = observed.deadline.share(READING)
        texts = list(self._known.items())
        least, ordered, _ = nearest_order(observed.untrained, observed.as_sent, texts, observed.protocol, deadline)
        self._known = {tuple(ids): label for ids, label in ordered}
        observed.report([torch.tensor(ids) for ids in self._known], least)
        return least < REPLAYED_WHOLE

    def _parts(self, texts: Mapping[Sentence, int]) -> Iterator[Mapping[str, Tensor]]:
        """Yield the part of each text in the gradient."""
        for ids, label in texts.items():
            own = batch_gradient(self._observed.target, [ids], [label], list(self._observed.as_sent))
            yield {name: tensor / self._count for name, tensor in own.items()}

    def without(self, texts: Mapping[Sentence, int]) -> ObservedUpdate:
        """Return what some sentences leave of the update, restored, as an update of the others."""
        observed = self._observed
        known = KnownPart(*({name: torch.zeros_like(own) for name, own in observed.as_sent.items()} for _ in range(2)))
        for own in self._parts(texts):
            for name, part in own.items():
                known.gradient[name].add_(part)
                known.squares[name].addcmul_(part, part)
        gradient = {name: tensor - known.gradient[name] for name, tensor in observed.as_sent.items()}
        found = replace(observed, gradient=gradient, floors={}, sent=None).restored_beside(known)
        scale = self._count / (self._count - len(texts))
        scaled = {name: scale * tensor for name, tensor in found.gradient.items()}
        floors = {name: NoiseFloor(scale * floor.rows, floor.columns) for name, floor in found.floors.items()}
        return replace(found, gradient=scaled, sent=scaled, floors=floors, protocol=Protocol(), progress=None)
