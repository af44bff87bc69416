"""Read a batch without dropout whose first layer stands out of a visible noise floor.

Half precision, quantisation, mixed precision, a few local steps and one step of AdamW all leave a row space that is
known to a hundredth or so. Its tokens are certain; sentences are completed as in a float32 gradient (`plain/`), with
two differences. Their contexts are always compared with the row space of the whole update, because a sentence cannot
be subtracted exactly from one that drifted. And each is held against the whole gradient of several layers
(`weight_fit.py`), in which a near miss does not fit. What the skeletons do not reach is searched by edits, with the
sentences found held fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.candidate_words import CandidateWords
from gradleak.attacks.sieve.defended.context_score import ContextScore
from gradleak.attacks.sieve.defended.context_search import ContextSearch
from gradleak.attacks.sieve.defended.feasible_set import count_sentences
from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.candidate_pairs import possible_pairs
from gradleak.attacks.sieve.plain.coefficients import word_sizes
from gradleak.attacks.sieve.plain.layout import Layout, lay_out
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.plain.sentence_search import (
    QUICK,
    SAME,
    Completed,
    SentenceSpaces,
    SkeletonCompletion,
    common_tokens,
)
from gradleak.attacks.sieve.plain.skeletons import find_skeletons
from gradleak.attacks.sieve.rounded.reading import Guesses, RoundedReading
from gradleak.attacks.sieve.rounded.weight_fit import WeightFit
from gradleak.attacks.sieve.token_pairs import TokenPairs

COMPLETED = ((False, QUICK), (True, 4))
"""Whether skeletons are completed thoroughly, and how many of them: the next if the last finds no sentence."""

LEFT = 0.2
"""A word is left if the sentences found explain all but this fraction of its coefficient, or of the median one."""

LIKELY = 0.6
"""A completed skeleton is weighed if it is certain, or if less than this fraction of each context lies outside."""

GOOD, FAIR = 0.1, 0.2
"""Misfit of a sentence that is certainly in the batch, and of one that is if no edit improves it. Rounding leaves
0.005, int8 0.03, one step of AdamW 0.06, drift over local steps up to 0.15; two words swapped or one missing leave 0.14
and more, mostly 0.3."""

ALIKE, RIVAL = 0.7, 2.0
"""Sentences that share this fraction of their tokens may be one; the second must not fit worse by this factor."""

NEARLY, AROUND, POLISHED = 0.6, 16, 0.98
"""A sentence with less than this misfit nearly fits; how many of its changes are weighed at a time, and the factor by
which a better one's misfit is smaller."""

UNSEEN = 16
"""Words of the whole vocabulary that are tried at each position of a sentence where guesses are needed."""

ROUNDS = 6
"""How often missing sentences are searched by edits, from other beginnings each time."""


class _Beginnings(NamedTuple):
    """Where sentences of some pairs begin.

    Attributes:
        completion: completes them.
        layouts: what is seen of each.
    """

    completion: SkeletonCompletion
    layouts: Sequence[Layout]


def read_rounded(
    observed: ObservedUpdate,
    count: int | None,
    longest: int,
    starts: int,
    guesses: Guesses | None = None,
    *,
    thorough: bool = True,
    fair: float = FAIR,
) -> RoundedReading:
    """Read a batch whose client had dropout switched off from an update with a visible noise floor.

    Args:
        observed: the update.
        count: the number of sentences; None if unknown.
        longest: the greatest number of tokens of a sentence.
        starts: how many skeletons are completed at most in one round.
        guesses: what may be in the batch, from another source.
        thorough: whether to go on where the quick ways find no further sentence.
        fair: the misfit of sentences that no edit improves.
    """
    return RoundedReader(observed, longest, starts, fair).run(count, guesses, thorough=thorough)


class RoundedReader:
    """Finds sentences by skeletons and then by edits, and weighs them against each other.

    Args:
        observed: the update.
        longest: the greatest number of tokens of a sentence.
        starts: how many skeletons are completed at most in one round.
        fair: the misfit of sentences that no edit improves.
    """

    def __init__(self, observed: ObservedUpdate, longest: int, starts: int, fair: float = FAIR) -> None:
        self.observed, self.longest, self.starts, self._fair = observed, longest, starts, fair
        self.remainder = Remainder.of(observed)
        self.spaces = SentenceSpaces.of(observed, self.remainder)
        special = torch.tensor([*sum(observed.target.special_tokens, ())], device=observed.words.device)
        self._special = torch.isin(self._pairs.tokens, special)
        self.words = torch.unique(self._pairs.tokens[~self._special])
        self.fit = WeightFit(observed, self.remainder)
        self._candidates: dict[Sentence, float] = {}
        self._settled: set[Sentence] = set()
        self._certain: set[Sentence] = set()
        self._unseen = 0

    @property
    def found(self) -> list[Sentence]:
        """The sentences that are kept."""
        return list(self.fit.weights)

    def run(self, count: int | None, guesses: Guesses | None = None, *, thorough: bool = True) -> RoundedReading:
        """Read as many sentences as there are, each by the quickest way that leads to one.

        Args:
            count: the number of sentences, if known.
            guesses: what may be in the batch, from another source.
            thorough: whether to go on where the quick ways find no further sentence.
        """
        if guesses is not None:
            self.words, self._unseen = torch.unique(torch.cat([self.words, guesses.words.to(self.words)])), UNSEEN
            for sentence in guesses.sentences:
                self._consider(Completed(tuple(sentence), 0.0, certain=False))
            if guesses.doubtful and self._score.depth:
                self._settle(self._search.each_alone([self._tensor(sentence) for sentence in guesses.sentences]))
            if not self._weigh() and self._missing(count):
                self._edit_near_misses(self._missing(count))
        while (missing := self._missing(count)) and any(self._ways(missing, thorough)):
            pass
        self.drop_doubles()
        certain, missing = self.found, self._number_missing(count)
        self.fit.keep([*certain, *(self._beginnings(missing) if certain else ())])
        labels = [label for label, _ in self.fit.weights.values()]
        misfits = [self.fit.misfit(sentence) for sentence in self.found]
        return RoundedReading(self.found, labels, len(certain), bool(certain) and not missing, misfits)

    def _ways(self, missing: int, thorough: bool) -> Iterator[bool]:
        """Search for further sentences in one way after the other, the quickest first, and yield whether there is one.

        Edits find a sentence of which most words are known in a fraction of the time that a completion takes which
        follows every lead.
        """
        beginnings = list(self._sources())
        for each in beginnings:
            yield self._complete_layouts(each, thorough=False)
        yield self._edit_near_misses(missing, NEARLY)
        for each in beginnings:
            yield self._polish(each.completion)
        if thorough:
            for each in beginnings:
                yield self._complete_layouts(each, thorough=True)
                yield self._complete_skeletons(each.completion)
            for _ in range(ROUNDS):
                yield self._edit_near_misses(missing)

    def _missing(self, count: int | None) -> int:
        """Return how many sentences to search: none when time is up."""
        return 0 if self.observed.deadline.passed else self._number_missing(count)

    def _number_missing(self, count: int | None) -> int:
        """Return how many sentences are missing: if not known, as many as complete the sum of weights, which is 1."""
        weights = sorted(weight for _, weight in self.fit.weights.values())
        if count is None and weights:
            return round(max(0.0, 1 - sum(weights)) / weights[len(weights) // 2])
        return max(0, (count or self._counted or 1) - len(weights))

    @cached_property
    def _counted(self) -> int | None:
        observed = self.observed
        return count_sentences(observed.target, observed.gradient, observed.protocol, observed.deadline)

    @cached_property
    def _score(self) -> ContextScore:
        observed = self.observed
        weights = observed.context_weights
        return ContextScore(observed.target, observed.inputs, observed.gradient, weights, observed.spectrum)

    def _sources(self) -> Iterator[_Beginnings]:
        """Yield where sentences begin: of the words that are left, then of all."""
        if not len(self._pairs.tokens) or not len(self._pairs.at(0)):
            return
        left = self._pairs_left()
        for pairs in (left, self._pairs) if len(left.tokens) < len(self._pairs.tokens) else (self._pairs,):
            completion = SkeletonCompletion(self.observed, pairs, self.spaces)
            yield _Beginnings(completion, lay_out(self.observed, pairs, self.remainder.gradients))

    def _complete_layouts(self, beginnings: _Beginnings, *, thorough: bool) -> bool:
        """Complete what was laid out, and return whether that leads to further sentences."""
        beginnings.completion.of_layouts(beginnings.layouts, self._consider, (thorough,))
        return self._weigh()

    def _complete_skeletons(self, completion: SkeletonCompletion) -> bool:
        """Complete skeletons, and return whether that leads to further sentences."""
        if self.observed.deadline.passed:
            return False
        skeletons = find_skeletons(self.observed, completion.pairs, self.remainder.gradients)
        ranked = completion.ranked(skeletons)[: self.starts]
        for thorough, most in COMPLETED:
            self._complete(completion, ranked[:most], thorough)
            if self._weigh():
                return True
        return False

    def _polish(self, completion: SkeletonCompletion) -> bool:
        """Improve sentences that nearly fit by the changes that lie in the row space best, until none fits better.

        Where the row space is known poorly, a wrong word may lie in it as well as the right one.
        """
        for sentence in self._near(len(self._candidates)):
            best = sentence
            if self._candidates[best] > NEARLY:
                break
            while not self.observed.deadline.passed:
                tried = [changed for changed in completion.around(best, AROUND) if changed not in self._candidates]
                self._candidates |= {changed: self.fit.misfit(changed) for changed in tried}
                better = min(tried, key=self._candidates.__getitem__, default=best)
                if self._candidates[better] > POLISHED * self._candidates[best]:
                    break
                best = better
            self._settled.add(best)
        return self._weigh()

    def _complete(self, completion: SkeletonCompletion, ranked: Sequence[Tensor], thorough: bool) -> None:
        """Complete skeletons, except those of sentences that were found meanwhile."""
        good = list(self.found)
        for row in ranked:
            if self.observed.deadline.passed:
                break
            tokens = tuple(completion.pairs.tokens[row].tolist())
            if any(common_tokens(tokens, sentence) > SAME for sentence in good):
                continue
            ended = completion.completed([row], thorough=thorough)
            good += [one.sentence for one in ended if self._consider(one)]

    def _consider(self, completed: Completed) -> bool:
        """Weigh a completed skeleton if it is likely, and return whether it is a sentence that was not known."""
        sentence, likely = completed.sentence, completed.certain or completed.outside < LIKELY
        if not sentence or not likely or sentence in self._candidates:
            return False
        if completed.certain:
            self._certain.add(sentence)
        self._candidates[sentence] = self.fit.misfit(sentence)
        return self._candidates[sentence] < self._limit(sentence)

    def _limit(self, sentence: Sentence) -> float:
        """Return the misfit that a sentence may have: more if no change improves it."""
        return self._fair if sentence in (self._certain or self._settled) else GOOD

    @cached_property
    def _pairs(self) -> TokenPairs:
        """The pairs of the whole update; those that begin and end texts included."""
        observed = self.observed
        special = torch.tensor([*sum(observed.target.special_tokens, ())], device=observed.words.device)
        words = torch.cat([observed.words, special.to(observed.words)])
        space = self.remainder.row_space(observed.inputs.maps)
        tokens, positions = possible_pairs(observed.inputs, space, words, self.longest)
        return TokenPairs.of(observed.target, observed.inputs, tokens, positions)

    @cached_property
    def _sizes(self) -> Tensor:
        return word_sizes(self.observed, self._pairs, self.observed.gradient)

    def _pairs_left(self) -> TokenPairs:
        """Return the pairs of words that the sentences found do not explain."""
        if not self.found:
            return self._pairs
        sizes = word_sizes(self.observed, self._pairs, self.remainder.gradients)
        left = (sizes > LEFT * self._sizes) | (sizes > LEFT * self._sizes.median())
        left = left | self._special
        filled = set(self._pairs.positions[left & ~self._special].tolist())
        begin = len(self.observed.target.special_tokens[0])
        end = next(place for place in range(begin, self.longest + 1) if place not in filled)
        return self._pairs.where(left & (self._pairs.positions <= end))

    def _edit_near_misses(self, missing: int, most_misfit: float = inf) -> bool:
        """Edit the sentences that nearly fit, those that fit held fixed, and return whether that leads to others."""
        if self.observed.deadline.passed or not self._score.depth:
            return False
        starts = [self._tensor(sentence) for sentence in self._beginnings(missing, most_misfit)]
        if not starts:
            return False
        fixed = [self._tensor(sentence) for sentence in self.found]
        self._settle(self._search.each_alone(self._search.one_beside_others(starts, fixed)))
        return self._weigh()

    @cached_property
    def _search(self) -> ContextSearch:
        words = CandidateWords(self.observed, self.observed.space.basis, self.words, self._unseen)
        return ContextSearch(self.observed, self._score, words)

    def _settle(self, sentences: Iterable[Tensor]) -> None:
        """Weigh sentences that no edit improves."""
        for ids in sentences:
            sentence = tuple(ids.tolist())
            self._candidates[sentence] = self.fit.misfit(sentence)
            self._settled.add(sentence)

    def _beginnings(self, missing: int, most_misfit: float = inf) -> list[Sentence]:
        """Return sentences that nearly fit, unlike each other and those that fit, and take them off the list."""
        chosen = [sentence for sentence in self._near(missing) if self._candidates[sentence] < most_misfit]
        for sentence in chosen:
            del self._candidates[sentence]
        return chosen

    def _near(self, most: int) -> list[Sentence]:
        """Return sentences that nearly fit, the best first, unlike each other and those that fit."""
        chosen: list[Sentence] = []
        for sentence in sorted(self._candidates, key=self._candidates.__getitem__):
            if all(common_tokens(sentence, other) < ALIKE for other in (*self.found, *chosen)):
                chosen.append(sentence)
        return chosen[:most]

    def _weigh(self) -> bool:
        """Keep the candidates that fit, the best first, and return whether there are more than before.

        Of two that resemble each other the second must fit about as well: a batch may have both.
        """
        before = len(self.found)
        chosen: list[Sentence] = []
        for sentence, misfit in sorted(self._candidates.items(), key=lambda item: item[1]):
            rivals = [self._candidates[kept] for kept in chosen if common_tokens(kept, sentence) > ALIKE]
            if misfit < min([GOOD if rivals else self._limit(sentence), *(RIVAL * rival for rival in rivals)]):
                chosen.append(sentence)
        self.fit.keep(chosen)
        self.observed.report([self._tensor(sentence) for sentence in chosen], self.fit.unexplained)
        return len(chosen) > before

    def drop_doubles(self) -> None:
        """Drop sentences that resemble another while what is left explains more: a near miss takes the same part."""
        while True:
            kept, least = self.found, self.fit.unexplained
            doubles = {one for one in kept for other in kept if one != other and common_tokens(one, other) > ALIKE}
            best = None
            for double in doubles:
                self.fit.keep([sentence for sentence in kept if sentence != double])
                if self.fit.unexplained < least:
                    best, least = double, self.fit.unexplained
            self.fit.keep([sentence for sentence in kept if sentence != best])
            if best is None:
                return

    def _tensor(self, sentence: Sentence) -> Tensor:
        return torch.tensor(sentence, device=self.observed.words.device)
