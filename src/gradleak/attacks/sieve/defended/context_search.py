"""Edit the sentences of a defended batch one by one while their context scores grow (`context_score.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.candidate_words import CandidateWords
from gradleak.attacks.sieve.defended.context_score import ContextScore, best_by_context
from gradleak.attacks.sieve.defended.edits import Replacements, neighbours, with_runs_moved, word_positions
from gradleak.attacks.sieve.defended.likely_edits import likely_edits
from gradleak.attacks.sieve.hill_climb import hill_climb
from gradleak.attacks.sieve.observed import ObservedUpdate

BREADTH = (16, 12, 4)
"""How many sentences of each length remain after one layer, how many of all after half of them, and in the end."""

COMPARED = (128, 64, 40)
"""The same where the distance of the whole batch decides."""

STEPS = 30
"""The greatest number of edits of a sentence."""

PATIENCE = 2
"""How many edits in a row may bring no gain once a sentence is nearly correct: some words come and go together."""

MOVED_RUNS = 32
"""In sentences of up to this many words, runs of words are moved where the distance of the whole batch decides; the
number of ways grows with the third power."""

DOUBLE = 0.5
"""A sentence whose score beside better ones is below this fraction of that by itself is mostly made of them."""

REGROWTHS = 2
"""How often others are grown in the place of such sentences at most."""

GROWN_FROM = 3
"""Words from which a sentence is grown in the place of such a one; the best is kept."""

LEAST_GAIN = 1e-4
"""Smaller gains of the score are noise."""


class ContextSearch:
    """Edits the sentences of a batch one by one while their context scores grow.

    Args:
        observed: the update.
        score: the score by itself, with no sentence fixed.
        words: proposes words for each position.
        resize: whether the number of tokens may change.
    """

    def __init__(
        self, observed: ObservedUpdate, score: ContextScore, words: CandidateWords, *, resize: bool = True
    ) -> None:
        self.observed, self.score, self.words, self._resize = observed, score, words, resize
        self._best_alone: set[tuple[int, ...]] = set()

    def one_beside_others(self, sentences: Sequence[Tensor], fixed: Sequence[Tensor] = ()) -> list[Tensor]:
        """Climb from each sentence, the best first, with those found before it, and others that are certain, fixed."""
        sentences = list(sentences)
        order = self.score.each(sentences).argsort(descending=True).tolist()
        for rank, number in enumerate(order):
            if self.observed.deadline.passed:
                break
            beside = self.score.with_fixed_sequences([*fixed, *(sentences[other] for other in order[:rank])])
            sentences[number] = self._climbed(beside, sentences, number)
        return sentences

    def each_alone(self, sentences: Sequence[Tensor]) -> list[Tensor]:
        """Climb from each sentence by itself: once it is nearly correct, the others need not be fixed."""
        sentences = list(sentences)
        for number in range(len(sentences)):
            if self.observed.deadline.passed:
                break
            if tuple(sentences[number].tolist()) in self._best_alone:
                continue
            better = self._climbed(self.score, sentences, number, patience=PATIENCE)
            if not any(torch.equal(better, other) for other in sentences):
                sentences[number] = better
            if not self.observed.deadline.passed:
                self._best_alone.add(tuple(sentences[number].tolist()))
        return sentences

    def without_doubles(self, sentences: Sequence[Tensor]) -> list[Tensor]:
        """Edit each sentence by itself, and grow others in the place of those that better ones mostly explain."""
        sentences = self.each_alone(sentences)
        for _ in range(REGROWTHS):
            if not self._regrow_doubles(sentences):
                break
        return sentences

    def _regrow_doubles(self, sentences: list[Tensor]) -> bool:
        """Replace sentences that better ones mostly explain by such as fit better beside them, if there are any."""
        scores, others, doubles = self.score.each(sentences), list[Tensor](), list[int]()
        for number in scores.argsort(descending=True).tolist():
            own = float(self.score.with_fixed_sequences(others)(sentences[number][None]))
            if own < DOUBLE * float(scores[number]):
                doubles.append(number)
            else:
                others.append(sentences[number])
        changed = False
        for number in doubles:
            beside = self.score.with_fixed_sequences(others)
            grown = self._grown(beside, others)
            if self.observed.deadline.passed:
                break
            alone = self._climbed(self.score, [*others, grown], len(others), patience=PATIENCE)
            tried = [sentences[number], grown, alone]
            best = int(beside.each(tried).argmax())
            changed |= best > 0
            sentences[number] = tried[best]
            others.append(tried[best])
        return changed

    def _grown(self, beside: ContextScore, others: Sequence[Tensor]) -> Tensor:
        """Climb beside others from the words that fit best, and return the best sentence."""
        before, after = (torch.tensor(ids, dtype=torch.long) for ids in self.observed.target.special_tokens)
        tokens = torch.unique(self.words.beside(others))
        ends = (part.to(tokens).expand(len(tokens), -1) for part in (before, after))
        single = torch.cat([next(ends), tokens[:, None], next(ends)], dim=1)
        starts = single[beside.first_layer(single).topk(min(GROWN_FROM, len(single))).indices]
        grown = [self._climbed(beside, [*others, start], len(others)) for start in starts]
        return grown[int(beside.each(grown).argmax())]

    def _climbed(self, score: ContextScore, sentences: Sequence[Tensor], number: int, *, patience: int = 0) -> Tensor:
        """Take the best edit that leads to a sentence not visited before, until that brings no gain any more."""
        tokens = self.words.beside(sentences)
        start = sentences[number]
        visited = {tuple(start.tolist())}

        def step(current: Tensor, best: tuple[Tensor, float]) -> tuple[Tensor, float] | None:
            nonlocal tokens
            others = [*sentences[:number], best[0], *sentences[number + 1 :]]
            self.observed.report(others, 1 - best[1])
            if len(tokens) <= len(current) < self.observed.longest:
                tokens = self.words.beside(others)
            tried, scores = best_by_context(score, self._neighbours(current, tokens), BREADTH, self.observed.deadline)
            fresh = next((n for n, ids in enumerate(tried) if tuple(ids.tolist()) not in visited), None)
            if fresh is None:
                return None
            visited.add(tuple(tried[fresh].tolist()))
            return tried[fresh], float(scores[fresh])

        value = float(score(start[None]))
        return hill_climb((start, value), step, steps=STEPS, patience=patience, least_gain=LEAST_GAIN)[0]

    def near(self, sentences: Sequence[Tensor], number: int) -> tuple[list[Tensor], Tensor]:
        """Return the sentences one edit away from one with the best scores, and their scores."""
        sentence = sentences[number]
        groups = self._neighbours(sentence, self.words.beside(sentences))
        places = word_positions(self.observed.target, sentence)
        if 2 < len(places) <= MOVED_RUNS:
            groups.append(with_runs_moved(sentence, places))
        return best_by_context(self.score, groups, COMPARED, self.observed.deadline)

    def likely(self, sentence: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the sentences with a word replaced by one like it, and with words that a prior expects."""
        groups = likely_edits(self.observed, sentence, resize=self._resize)
        return [ids for group in groups for ids in group], torch.cat([self.score(group) for group in groups])

    def _neighbours(self, sentence: Tensor, tokens: Tensor) -> list[Tensor | Replacements]:
        return neighbours(self.observed.target, sentence, tokens, self.observed.longest, resize=self._resize)
