"""Read one update of an encoder's adapters: tokens, pairs, sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradleak.attacks.forest.encoders.pairs import Sentence, solve_pairs
from gradleak.attacks.forest.encoders.sentences import SentenceJudge, SentenceSearch
from gradleak.attacks.forest.positioned_tokens import pursue_positioned_tokens
from gradleak.attacks.forest.residual import Residual
from gradleak.attacks.forest.sites import InputSite
from gradleak.exchange import Deadline
from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.targets import Target

DEPTH = 2
"""Deeper sites that judge sentences: the first of them, which take the least time to compute."""

EXPLAINED = 1e-4
"""Sentences are found if they leave less than this fraction of every judging site's rows."""

FITS = 1.0
"""Sentences with lower scores, at the end, belong to no batch."""

SWEEPS = 3
"""How often every sentence is looked for again beside the others, at most."""

MOST = 64
"""Sentences of a batch, at most."""


class EncoderReader:
    """Finds the sentences behind the rows of an encoder's adapters.

    Args:
        target: an encoder.
        inputs: the tables of x(t, p).
        sites: the sites, first layer first.
        residual_of: makes the rows of a site.
        deadline: when to return what was found.
        progress: called with the sentences so far, and the fraction of the rows that they leave.
    """

    def __init__(
        self,
        target: Target,
        inputs: LayerInputs,
        sites: Sequence[InputSite],
        residual_of: Callable[[int], Residual],
        deadline: Deadline,
        progress: Callable[[Sequence[Sentence], float], None],
    ) -> None:
        self.target, self.inputs, self.deadline, self.progress = target, inputs, deadline, progress
        self.first = residual_of(0)
        self.rows = sites[0].rows
        deep = range(1, min(1 + DEPTH, len(sites)))
        self.judge = SentenceJudge(
            target, [sites[number] for number in deep], lambda number: residual_of(deep[number]), sites[0]
        )

    def tokens(self) -> Tensor:
        """Return the tokens of the batch in ascending order; empty if they cannot be told."""
        picked, whole = pursue_positioned_tokens(self.inputs, self.first, self.deadline)
        return torch.tensor(sorted(picked) if whole else [], dtype=torch.long, device=self.target.device)

    def sentences(self, tokens: Tensor) -> list[Sentence]:
        """Return the sentences that are made of these tokens, as far as they were found."""
        alone = self._heaviest(tokens)
        if self._explained([alone]):
            return [alone]
        found: list[Sentence] = []
        while len(found) < MOST and not self.deadline.passed:
            sentence, score = self._search(tokens, found)
            if not sentence or sentence in found or (found and score < FITS):
                break
            found.append(sentence)
            if self._explained(found):
                return self._without_superfluous(found)
        for _ in range(SWEEPS):
            before = list(found)
            found = self._again(tokens, found)
            if found == before or self.left < EXPLAINED or self.deadline.passed:
                break
        return self._without_superfluous(found) if self.left < EXPLAINED else found

    @property
    def left(self) -> float:
        """The largest fraction of a judging site's rows that the sentences judged last do not explain."""
        return max(self.judge.left)

    def _without_superfluous(self, sentences: Sequence[Sentence]) -> list[Sentence]:
        """Take back sentences without which the others explain the rows as well, those found first before the last."""
        kept = list(sentences)
        for sentence in sentences:
            others = [one for one in kept if one != sentence]
            if others and self._explained(others):
                kept = others
        self._explained(kept)
        return kept

    def _heaviest(self, tokens: Tensor) -> Sentence:
        """Return the token that contributes most at each position: the sentence, if there is but one."""
        pairs = solve_pairs(self.inputs, self.rows, tokens, self.target.special_tokens)
        return tuple(pairs.tokens[pairs.weights.argmax(dim=0)].tolist())

    def _search(self, tokens: Tensor, beside: Sequence[Sentence]) -> tuple[Sentence, float]:
        """Return the best sentence beside those that are fixed, and its score."""
        self.judge.fix(beside)
        pairs = solve_pairs(self.inputs, self.rows, tokens, self.target.special_tokens, beside)
        return SentenceSearch(self.judge, pairs, self.target.special_tokens, self.deadline).best()

    def _explained(self, sentences: Sequence[Sentence]) -> bool:
        self.judge.fix(sentences)
        self.progress(sentences, self.left)
        return self.left < EXPLAINED

    def _again(self, tokens: Tensor, sentences: Sequence[Sentence]) -> list[Sentence]:
        """Look for each sentence again beside the others, the worst first; drop it if a search finds none that fits."""
        found = list(sentences)
        for sentence in sorted(sentences, key=lambda one: self._score(one, [s for s in found if s != one])):
            if self.deadline.passed:
                break
            others = [one for one in found if one != sentence]
            old = self._score(sentence, others)
            better, score = self._search(tokens, others)
            if score > max(old, FITS) and better not in others:
                found = [*others, better]
            elif old < FITS:
                found = others
            if self._explained(found):
                break
        return found

    def _score(self, sentence: Sentence, others: Sequence[Sentence]) -> float:
        self.judge.fix(others)
        return float(self.judge([sentence])[0])
