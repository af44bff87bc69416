"""Read one sentence by maximum a posteriori search where noise hides the words of the first layer.

The gradient as a whole still distinguishes every sentence from every other (`likelihood.py`); what is missing are
candidates. A fit of all inputs at once (`input_fit.py`) gives most words, in about the right order. Two sources propose
others: descent from a nearly correct sentence moves its wrong words towards better ones, and a language model predicts
words from the ones before, which finds the small words that leave hardly a trace. A hill climb (`lazy_climb.py`) tries
them, until a sentence seems to leave nothing but noise. Words that are alike differ by less than that test shows, and
still by a thousand nats: a last climb is by the posterior, in which the prior decides what the update leaves open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gradleak.attacks.sieve.expected_words import continuations, expected_words
from gradleak.attacks.sieve.hill_climb import hill_climb
from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.noise.input_fit import SLOTS, InputFit
from gradleak.attacks.sieve.noise.lazy_climb import DraftScore, LazyClimb
from gradleak.attacks.sieve.noise.likelihood import Likelihood, likeliest_label, log_prior
from gradleak.attacks.sieve.noise.proposals import alike, insertions, replacements
from gradleak.attacks.sieve.noise.runs import runs_moved
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.exchange import Deadline
from gradleak.leakage.perturbation import noise_deviation
from gradleak.optimisation.descent import Descent, descend
from gradleak.optimisation.guess import Guess
from gradleak.priors import Prior

NEAREST = 8
"""How many words near each embedding of a descent from a sentence are tried at its position."""

ROUNDS = 6
"""How often inputs are fitted further, or embeddings descended from a sentence that no change improves."""

TRIED = 5000
"""How many sentences are compared with the update at most."""

TRIED_FIRST, TIME_FIRST = 2500, 0.5
"""Under dropout: how many sentences are compared, and the fraction of the time, before masks are fitted."""

FITTED, REFINED = 12, 16
"""How many sentences are compared with masks of their own in a step under dropout, and the number of such steps."""

READABLE = 5e-4
"""Weight of a nat of the prior under dropout, as a fraction of the matched filter: unknown masks, not noise, limit what
the update distinguishes."""


def read_by_likelihood(
    observed: ObservedUpdate, read: DefendedReading | None, prior: Prior | None, length: int | None = None
) -> DefendedReading:
    """Read the sentence of a noisy update.

    Args:
        observed: the update.
        read: what was read so far, which may be nearly correct; None to start from nothing.
        prior: proposes words, and decides between sentences that the update does not distinguish.
        length: the number of tokens, if known.
    """
    target, gradient = observed.target, observed.gradient
    start = read.sentences[0] if read else None
    label = likeliest_label(target, gradient, start or [*target.special_tokens[0], *target.special_tokens[1]])
    deviation = noise_deviation(target, gradient, observed.inputs.maps[0])
    likelihood = Likelihood(target, gradient, deviation, label, observed.deadline)
    search = MapSearch(observed, likelihood, prior, length)
    if start and not likelihood.dropout.masks and likelihood.leaves_only_noise(start):
        sentence = search.polished(start)
    else:
        sentence = search.run(start)
    settled = not likelihood.dropout.masks and likelihood.leaves_only_noise(sentence)
    return DefendedReading([sentence], [label], likelihood.distance(sentence), settled)


class MapSearch:
    """A maximum a posteriori search for one sentence.

    Args:
        observed: the update.
        likelihood: compares sentences with it.
        prior: proposes words and breaks ties; None for neither.
        length: the number of tokens, if known.
    """

    def __init__(
        self, observed: ObservedUpdate, likelihood: Likelihood, prior: Prior | None, length: int | None
    ) -> None:
        self.observed, self.target = observed, observed.target
        self.likelihood, self.prior, self.length = likelihood, prior, length
        before, after = self.target.special_tokens
        self._frame = (list(before), list(after))
        longest = observed.longest - len(before) - len(after)
        dropout, deadline = bool(likelihood.dropout.masks), observed.deadline
        self._most = TRIED_FIRST if dropout else TRIED
        self._climb_until = deadline.sooner(TIME_FIRST * deadline.left) if dropout and deadline.limited else deadline
        expected = continuations(self.target, prior)
        self._rearrange = partial(runs_moved, continuations=expected, end=after[0] if after else -1)
        self.climb = self._new_climb(self._values, longest, self._climb_until)

    def run(self, start: Sequence[int] | None) -> list[int]:
        """Climb from a start, and propose new words whenever no change improves the sentence."""
        before, after = map(len, self._frame)
        draft = Draft.of(start[before : len(start) - after] if start else ())
        self.climb.learn(draft.tokens)
        fit = self._new_fit()
        for number in range(ROUNDS):
            if number and self._climb_until.passed:
                break
            if not fit.finished:
                draft = self._fitted(fit, draft)
            else:
                self._consider(draft, self.climb)
            draft, _ = self.climb.run(draft, self._most - self.climb.tried)
            if self.climb.tried >= self._most or self.likelihood.leaves_only_noise(self._framed(draft.tokens)):
                break
        if self.likelihood.dropout.masks:
            return self._refined([Draft.of(leader) for leader in self.climb.leaders])
        leaders = [self._framed(leader) for leader in self.climb.leaders]
        return self.polished(leaders[int(self.likelihood.posterior(leaders, self.prior).argmax())])

    def polished(self, sentence: Sequence[int]) -> list[int]:
        """Climb by the posterior from a sentence that explains nearly all of the update."""
        before, after = map(len, self._frame)
        draft = Draft.of(sentence[before : len(sentence) - after])
        climb = self._new_climb(self._posterior, self.climb.longest, self.observed.deadline)
        for _ in range(ROUNDS):
            if self.observed.deadline.passed:
                break
            self._consider(draft, climb)
            climb.consider(alike(self.target, self.observed.words, draft))
            better, _ = climb.run(draft, TRIED)
            if better is draft:
                break
            draft = better
        return self._framed(draft.tokens)

    def _new_climb(self, score: DraftScore, longest: int, deadline: Deadline) -> LazyClimb:
        return LazyClimb(
            score,
            expected_words(self.observed, self.prior),
            longest,
            resize=self.length is None,
            deadline=deadline,
            rearrange=self._rearrange,
        )

    def _posterior(self, drafts: Sequence[Draft]) -> Tensor:
        return self.likelihood.posterior([self._framed(draft.tokens) for draft in drafts], self.prior)

    def _refined(self, drafts: list[Draft]) -> list[int]:
        """Climb further under dropout, where each sentence is compared with masks fitted to it."""

        def step(current: Draft, best: tuple[Draft, float]) -> tuple[Draft, float] | None:
            if self.observed.deadline.passed:
                return None
            if current is best[0]:
                self._consider(current, self.climb)
            near = self.climb.nearby(current)[:FITTED]
            values = self._values_with_masks(near)
            return near[int(values.argmax())], float(values.max())

        values = self._values_with_masks(drafts)
        start = drafts[int(values.argmax())], float(values.max())
        return self._framed(hill_climb(start, step, steps=REFINED)[0].tokens)

    def _values_with_masks(self, drafts: Sequence[Draft]) -> Tensor:
        sentences = [self._framed(draft.tokens) for draft in drafts]
        values = self.likelihood.with_masks(sentences)
        if self.prior is not None:
            nats = log_prior(self.prior, self.target, sentences).cpu()
            values = values + READABLE * float(values.max()) * nats
        return values

    def _framed(self, tokens: Sequence[int]) -> list[int]:
        before, after = self._frame
        return [*before, *tokens, *after]

    def _values(self, drafts: Sequence[Draft]) -> Tensor:
        sentences = [self._framed(draft.tokens) for draft in drafts]
        values = self.likelihood(sentences)
        best = sentences[int(values.argmax())]
        self.observed.report([torch.tensor(best, device=self.target.device)], self.likelihood.distance(best))
        return values

    def _new_fit(self) -> InputFit:
        return InputFit(
            self.observed,
            self.likelihood.matched_filter,
            [self.likelihood.label],
            self.length or min(SLOTS, self.observed.longest),
            self.likelihood.masks_for if self.likelihood.dropout.masks else None,
            all_filled=self.length is not None,
        )

    def _fitted(self, fit: InputFit, draft: Draft) -> Draft:
        """Return the words near vectors that were fitted to the update, or the draft if it is likelier."""
        (words,) = fit.advance()
        self.climb.learn(words)
        fitted = Draft.of(words)
        if not draft.tokens:
            return fitted
        before, after = self._values([draft, fitted]).tolist()
        return draft if before > after else fitted

    def _consider(self, draft: Draft, climb: LazyClimb) -> None:
        """Propose words near a draft's embeddings, and words that it may lack."""
        target, label = self.target, self.likelihood.label
        climb.consider(replacements(target, draft, label, self._descended))
        if self.length is None and len(draft.tokens) < climb.longest:
            climb.consider(insertions(target, self.observed.words, draft, label, self._descended))

    def _descended(self, guess: Guess, descent: Descent) -> Tensor:
        """Return the words nearest to the descended embeddings at each free position `[positions, words]`."""
        masks = {name: mask.clone() for name, mask in self.likelihood.masks_for(guess.slots.ids).items()}
        sites = self.likelihood.dropout.sites(guess.slots.ids.shape[-1]) if masks else {}
        guess = replace(guess, dropout=masks, sites=sites)
        guess = descend(self.target, self.likelihood.matched_filter, guess, descent)
        near = guess.slots.nearest(self.target, guess.embeddings, NEAREST)
        return near[guess.slots.free]
