"""Fit what enters the model, words and positions at once, to the whole gradient of a noisy batch.

The likelihood of a noisy gradient has its maximum near the true inputs even where no singular value of a layer exceeds
the noise, for all sentences of a batch together. Descent gets close to it only if it follows the curvature: the last
layers have most of the gradient, the first ones most of what tells words apart. So L-BFGS maximises it, of one sentence
after the matched filter, in which the first layers count more. Each vector is then near one word at one position
(`placed_words.py`). Clear ones are settled, and what is left is fitted again beside them; else it would fit noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.attacks.sieve.noise.placed_words import PlacedToken, PlacedWords
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.matching import Candidates, Matcher, SquaredL2
from gradleak.optimisation.quasi_newton import minimise

SLOTS = 20
"""Number of tokens of a sentence of unknown length at first: too many do no harm."""

BY_FILTER, BY_LIKELIHOOD, TOGETHER, AGAIN = 80, 120, 400, 80
"""How often the gradient of one sentence is evaluated by the matched filter, then by the likelihood; that of several by
the likelihood alone, because the filter fits more noise; and how often in every further fit."""

SETTLED = (0.8, 0.75, 0.7)
"""Before each further fit vectors are settled whose cosine with a placed word is above the next of these."""

CLEAR, REPEATED = 0.36, 0.8
"""A vector is taken for a word above the first cosine; above the second if the sentence has the word already: loud
words leave an echo in other vectors."""

CROWDED, GROWTH = 0.7, 1.6
"""If more than this fraction of a sentence's slots are words, some may be missing: slots are added, by this factor."""

BEYOND = 8
"""How many more positions than slots are considered."""

Masks = Callable[[Tensor], Mapping[str, Tensor]]
"""Returns the dropout masks by site, for ids `[1, 1, sequences, tokens]`."""


class InputFit:
    """Vectors in the slots of a batch, some of them settled as words.

    Args:
        observed: the update.
        matched_filter: compares gradients by the matched filter.
        labels: the class of each sentence.
        slots: how many tokens each sentence has; more are tried where these do not suffice.
        masks: the dropout masks that the update shows; None for none.
        all_filled: whether every slot holds a token, as where lengths are known.
    """

    def __init__(
        self,
        observed: ObservedUpdate,
        matched_filter: Matcher,
        labels: Sequence[int],
        slots: int,
        masks: Masks | None = None,
        *,
        all_filled: bool = False,
    ) -> None:
        self._observed, self._target = observed, observed.target
        self._matched_filter, self._likelihood = matched_filter, matched_filter.with_distance(SquaredL2())
        self._labels = torch.tensor(labels, device=self._target.device)[None, None]
        self._masks, self._all_filled = masks or (lambda _: {}), all_filled
        self._generator = torch.Generator().manual_seed(0)
        self._starts, self._ends = map(list, self._target.special_tokens)
        self._words: list[dict[int, PlacedToken]] = [{} for _ in labels]  # by slot
        width = self._target.word_embeddings.shape[1]
        self._embeddings = self._target.word_embeddings.new_zeros(len(labels), 0, width)
        self._free = torch.zeros(len(labels), 0, dtype=torch.bool, device=self._target.device)
        self._fits = 0
        self._add_slots(slots)
        self._put_specials()

    @property
    def finished(self) -> bool:
        """Whether no further fit is worth its time."""
        return self._fits > len(SETTLED) or not bool(self._free.any()) or self._matched_filter.deadline.passed

    def advance(self) -> list[list[int]]:
        """Fit further, and return the words of each sentence, in order, as far as they are clear."""
        if not self._fits:
            self._fit_first()
            while not self._all_filled and self._grown():
                self._fit_first()
        else:
            for number in range(len(self._words)):
                self._settle(number, SETTLED[self._fits - 1])
            self._fit(self._likelihood, AGAIN)
        self._fits += 1
        return [self._read(number) for number in range(len(self._words))]

    # --- slots -----------------------------------------------------------------------------------------------------

    def _add_slots(self, count: int) -> None:
        """Add slots with random vectors."""
        batch, slots, width = self._embeddings.shape
        scale = float(self._target.word_embeddings.norm(dim=1).mean()) / width**0.5
        drawn = torch.randn(batch, count, width, generator=self._generator) * scale
        self._embeddings = torch.cat([self._embeddings, drawn.to(self._embeddings)], dim=1)
        self._free = torch.cat([self._free, self._free.new_ones(batch, count)], dim=1)
        slots += count
        inputs, words = self._observed.inputs, self._observed.words
        tokens = torch.cat([words, words.new_tensor(self._ends)])
        positions = min(slots if self._all_filled else slots + BEYOND, inputs.positions.shape[0])
        self._placed = PlacedWords(self._target, inputs, tokens, positions)
        ids = torch.zeros(1, 1, batch, slots, dtype=torch.long, device=self._target.device)
        self._dropout = dict(self._masks(ids))

    def _grown(self) -> bool:
        """Add slots if those of a sentence may not suffice; return whether there are more now."""
        slots = self._free.shape[1]
        used = max(len(self._clear(number)) for number in range(len(self._words)))
        more = min(int(slots * GROWTH), self._observed.longest) - slots
        if used < CROWDED * slots or more < 1 or self._matched_filter.deadline.passed:
            return False
        self._add_slots(more)
        return True

    def _put_specials(self) -> None:
        """Put the tokens that begin every text into the first slots; where all are filled, those that end it, too."""
        slots = self._free.shape[1]
        known = dict(enumerate(self._starts))
        if self._all_filled:
            known |= dict(enumerate(self._ends, start=slots - len(self._ends)))
        for slot, token in known.items():
            self._embeddings[:, slot] = self._target.word_embeddings[token]
            self._free[:, slot] = False
            for settled in self._words:
                settled[slot] = PlacedToken(1.0, token, slot)

    # --- fits ------------------------------------------------------------------------------------------------------

    def _fit_first(self) -> None:
        if len(self._words) > 1:
            self._fit(self._likelihood, TOGETHER)
        else:
            self._fit(self._matched_filter, BY_FILTER)
            self._fit(self._likelihood, BY_LIKELIHOOD)

    def _fit(self, matcher: Matcher, evaluations: int) -> None:
        """Fit the vectors that are not settled."""
        embeddings, free = self._embeddings, self._free
        if not bool(free.any()):
            return

        def objective(vectors: Tensor) -> tuple[float, Tensor]:
            embeddings[free] = vectors
            inputs = embeddings[None, None].detach().clone().requires_grad_()
            whole = Candidates(inputs, torch.ones_like(free)[None, None], self._labels, self._dropout)
            loss, gradients = matcher.gradients(whole)
            return float(loss), gradients["inputs"][0, 0][free]

        embeddings[free] = minimise(objective, embeddings[free], evaluations, matcher.deadline)

    def _settle(self, number: int, least: float) -> None:
        """Settle the clear vectors of a sentence, the clearest first, each at a position of its own."""
        settled = self._words[number]
        while True:
            taken = {own.position for own in settled.values()}
            clear = max(self._open(number, taken), key=lambda found: found[1].cosine, default=None)
            if clear is None or clear[1].cosine < least:
                return
            slot, own = clear
            settled[slot] = own
            self._embeddings[number, slot] = self._placed.embedding(own.token, own.position, slot)
            self._free[number, slot] = False

    # --- words -----------------------------------------------------------------------------------------------------

    def _open(self, number: int, taken: set[int]) -> list[tuple[int, PlacedToken]]:
        """Return the slots of a sentence that are not settled, with the words nearest to their vectors."""
        slots = [slot for slot in range(self._free.shape[1]) if slot not in self._words[number]]
        return [(slot, self._placed.nearest(self._embeddings[number, slot], slot, taken)) for slot in slots]

    def _read(self, number: int) -> list[int]:
        """Return the words of a sentence in order."""
        placed = self._filled(number) if self._all_filled else self._clear(number)
        frame = {*self._starts, *self._ends}
        return [own.token for own in sorted(placed, key=lambda own: own.position) if own.token not in frame]

    def _clear(self, number: int) -> list[PlacedToken]:
        """Return the clear words of a sentence, without the echoes of others."""
        clear = list(self._words[number].values())
        known = {own.token for own in clear}
        frame = {*self._starts, *self._ends}
        for own in sorted((own for _, own in self._open(number, set())), key=lambda own: -own.cosine):
            only = known <= frame and own.token not in frame  # a sentence has a word, clear or not
            if only or own.cosine > (REPEATED if own.token in known else CLEAR):
                clear.append(own)
                known.add(own.token)
        return clear

    def _filled(self, number: int) -> list[PlacedToken]:
        """Return words at all positions of a sentence: each vector at another one, so that they fit best."""
        settled = self._words[number]
        taken = {own.position for own in settled.values()}
        slots = [slot for slot in range(self._free.shape[1]) if slot not in settled]
        positions = [place for place in range(self._free.shape[1]) if place not in taken]
        if not slots:
            return list(settled.values())
        found = [self._placed.by_position(self._embeddings[number, slot], slot) for slot in slots]
        cosines = torch.stack([cosine[positions] for cosine, _ in found]).cpu().numpy()
        filled = [
            PlacedToken(float(cosines[row, column]), int(found[row][1][positions[column]]), positions[column])
            for row, column in zip(*linear_sum_assignment(-cosines), strict=True)
        ]
        return [*settled.values(), *filled]
