"""Read several sentences of a noisy update together, where noise hides the words of the first layer.

One sentence can be found by itself (`map_search.py`); in a batch the others would disturb it. So the inputs of all
sentences are fitted together first (`input_fit.py`), which finds the clear words of each. Then the ends of sentences
that were mixed up are exchanged, and every sentence is improved beside all others: a hill climb adds the words near its
own embeddings and in its gaps, and those that a language model expects.

Words of one sentence explain the update nearly as well in another, so the prior counts all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import torch
from torch import Tensor

from gradleak.attacks.sieve.expected_words import continuations, expected_words
from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.noise.exchanges import WordPair, best_exchange
from gradleak.attacks.sieve.noise.input_fit import SLOTS, InputFit
from gradleak.attacks.sieve.noise.lazy_climb import LazyClimb
from gradleak.attacks.sieve.noise.likelihood import MatchedFilter, log_prior
from gradleak.attacks.sieve.noise.proposals import insertions, replacements
from gradleak.attacks.sieve.noise.sentence_count import class_fractions
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.exchange import Deadline
from gradleak.leakage.labels import class_counts
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.optimisation.descent import Descent, descend
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.slots import Slots
from gradleak.priors import Prior

TIME_FITTED = 0.5
"""The greatest fraction of the time that the fit takes."""

NEAREST = 8
"""How many words near each embedding of a descent from a sentence are tried at its position."""

IMPROVED = 500
"""How many sentences are compared in a climb that improves a sentence."""

ROUNDS, EXCHANGES = 4, 3
"""How often all sentences are improved, and how many phrases are moved between them after that."""

READABLE = 1e-4
"""Weight of a nat of the prior, as a fraction of the matched filter."""


def read_batch_by_likelihood(observed: ObservedUpdate, count: int, prior: Prior | None) -> DefendedReading:
    """Read so many sentences of a noisy update.

    Args:
        observed: the update.
        count: the number of sentences.
        prior: proposes words, and prefers sentences that read well.
    """
    return BatchSearch(observed, likely_classes(observed, count), prior).run()


def likely_classes(observed: ObservedUpdate, count: int) -> list[int]:
    """Return the classes of a batch, in order: of each as many as the classifier's bias gradient shows."""
    counts = class_counts(observed.target, observed.gradient, count)
    if counts is None:
        fractions = class_fractions(observed.target, observed.gradient)
        if fractions is None:
            return [number % observed.target.num_labels for number in range(count)]
        counts = [int(share) for share in (fractions * count).tolist()]
        rest = (fractions * count).frac().argsort(descending=True).tolist()
        for label in rest[: count - sum(counts)]:
            counts[label] += 1
    return [label for label, own in enumerate(counts) for _ in range(own)]


class BatchSearch:
    """The sentences of a batch, as far as they are found.

    Args:
        observed: the update.
        labels: the class of each sentence.
        prior: proposes words and prefers sentences that read well; None for neither.
    """

    def __init__(self, observed: ObservedUpdate, labels: Sequence[int], prior: Prior | None) -> None:
        self.observed, self.target, self.prior = observed, observed.target, prior
        self.labels = torch.tensor(labels, device=self.target.device)[None, None]  # [1, 1, B]
        self._suggest = expected_words(observed, prior)
        self._continuations = continuations(self.target, prior)
        self._matcher = Matcher(self.target, [observed.gradient], MatchedFilter()).until(observed.deadline)
        before, after = self.target.special_tokens
        self._frame = (list(before), list(after))
        self._room = observed.longest - len(before) - len(after)
        self._end = after[0] if after else -1
        self._scale = 0.0
        self.drafts: dict[int, Draft] = {}

    def run(self) -> DefendedReading:
        """Return the sentences that were found."""
        deadline = self.observed.deadline
        until = deadline.sooner(TIME_FITTED * deadline.left) if deadline.limited else deadline
        slots = min(SLOTS, self.observed.longest)
        fit = InputFit(self.observed, self._matcher.until(until), self.labels[0, 0].tolist(), slots)
        words = fit.advance()
        while not fit.finished:
            words = fit.advance()
        self.drafts = {number: Draft.of(own[: self._room]) for number, own in enumerate(words)}
        self._scale = max(0.0, -float(self._matcher(self._from_words().candidates(self.target))))
        self._report()
        if not deadline.passed:
            self._improve()
        return self._reading()

    def _improve(self) -> None:
        """Exchange words between sentences, and improve each beside the others, in turn."""
        for _ in range(ROUNDS):
            before = self._sentences()
            for _ in range(EXCHANGES):
                exchanged = None
                if not self.observed.deadline.passed:
                    exchanged = best_exchange(
                        self.drafts, self._values_of_pairs, self._continuations, self._end, self._room
                    )
                if exchanged is None:
                    break
                self.drafts = exchanged
                self._report()
            self._improve_each()
            if self.observed.deadline.passed or self._sentences() == before:
                break

    def _improve_each(self) -> None:
        """Climb from every sentence beside the others, with words near its embeddings and in its gaps."""
        everywhere = {token for draft in self.drafts.values() for token in draft.tokens}
        for number, draft in list(self.drafts.items()):
            if self.observed.deadline.passed:
                return
            matcher = self._matcher.with_fixed_sequences(self._from_words().candidates(self.target), number)
            descended = partial(self._descended_words, matcher)
            label = int(self.labels[0, 0, number])
            climb = self._climb(self._score(matcher, label), self.observed.deadline)
            climb.learn(everywhere)
            climb.consider(replacements(self.target, draft, label, descended))
            if len(draft.tokens) < self._room:
                climb.consider(insertions(self.target, self.observed.words, draft, label, descended))
            self.drafts[number] = climb.run(draft, IMPROVED)[0]
            self._report()

    def _descended_words(self, matcher: Matcher, guess: Guess, descent: Descent) -> Tensor:
        """Return the words near descended embeddings at each free position `[positions, words]`."""
        guess = descend(self.target, matcher, guess, descent)
        return guess.slots.nearest(self.target, guess.embeddings, NEAREST)[guess.slots.free]

    def _climb(self, score: Callable[[Sequence[Draft]], Tensor], deadline: Deadline) -> LazyClimb:
        return LazyClimb(score, self._suggest, self._room, resize=True, deadline=deadline)

    def _score(self, matcher: Matcher, label: int) -> Callable[[Sequence[Draft]], Tensor]:
        """Return the score of drafts of one class."""

        def score(drafts: Sequence[Draft]) -> Tensor:
            sentences = [self._framed(draft.tokens) for draft in drafts]
            values = torch.empty(len(sentences), dtype=torch.float64)
            for length in {len(ids) for ids in sentences}:
                numbers = [n for n, ids in enumerate(sentences) if len(ids) == length]
                ids = torch.tensor([sentences[n] for n in numbers], device=self.target.device)[None, :, None]
                candidates = Candidates(
                    ids, torch.ones_like(ids, dtype=torch.bool), torch.full_like(ids[..., 0], label)
                )
                values[numbers] = -matcher(candidates)[0].cpu()
            return values + self._readability(sentences)

        return score

    def _values_of_pairs(self, numbers: tuple[int, int], pairs: Sequence[WordPair]) -> Tensor:
        """Return the values of the batch with other words for two of its sentences."""
        matcher = self._matcher.with_fixed_sequences(self._from_words().candidates(self.target), *numbers)
        sentences = [self._framed(words) for pair in pairs for words in pair]
        batch = self.target.pad(sentences)
        labels = self.labels[:, :, list(numbers)].expand(1, len(pairs), 2)
        shape = (*labels.shape, -1)
        distances = matcher(Candidates(batch.ids.view(shape), batch.mask.view(shape), labels))[0]
        return self._readability(sentences).view(-1, 2).sum(dim=1) - distances.cpu()

    def _readability(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return what the prior adds to the values of sentences `[sentences]`."""
        if self.prior is None:
            return torch.zeros(len(sentences), dtype=torch.float64)
        return READABLE * self._scale * log_prior(self.prior, self.target, sentences).cpu()

    def _from_words(self) -> Guess:
        """Return the sentences found as a guess, all words free."""
        rows = self._sentences()
        slots = Slots.of(self.target, [[list(map(len, rows))]])
        embeddings = self.target.embed(self.target.pad(rows).ids)[None, None].clone()
        losses = torch.full((1, 1), inf, dtype=torch.float64, device=self.target.device)
        return Guess(slots, embeddings, self.labels, losses)

    def _sentences(self) -> list[list[int]]:
        return [self._framed(self.drafts[number].tokens) for number in range(self.labels.shape[2])]

    def _framed(self, words: Sequence[int]) -> list[int]:
        before, after = self._frame
        return [*before, *words, *after]

    def _reading(self) -> DefendedReading:
        sentences = self._sentences()
        batch = self.target.pad(sentences)
        whole = Candidates(batch.ids[None, None], batch.mask[None, None], self.labels)
        distance = float(self._matcher.with_distance(Cosine())(whole))
        return DefendedReading(sentences, self.labels[0, 0].tolist(), distance)

    def _report(self) -> None:
        found = [torch.tensor(self._framed(draft.tokens), device=self.target.device) for draft in self.drafts.values()]
        self.observed.report(found, 1.0)
