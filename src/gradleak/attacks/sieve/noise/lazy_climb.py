"""A hill climb that evaluates only the most promising changes at every step (lazy greedy search, Minoux 1978).

The last gain of a change predicts its next: changes with the largest expected gain are evaluated first, and the others
not at all while one of these still helps. The prediction is rough, since words depend on each other: an expected loss
shrinks with every step. A change that was never evaluated is expected to bring what its word brought elsewhere; one
with a word never tried comes first. Where no such change helps, runs of words are moved (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from torch import Tensor

from gradleak.attacks.sieve.hill_climb import hill_climb
from gradleak.attacks.sieve.noise.drafts import START, Change, Draft, possible_changes
from gradleak.attacks.sieve.noise.runs import Rearrange
from gradleak.exchange import Deadline

AT_ONCE = 128
"""How many changes are evaluated together."""

IDLE = 2
"""How many such groups are evaluated before a step without gain ends the climb; more while there are changes that may
bring a gain, as those never evaluated may."""

COMBINED = 4
"""How many changes are applied in one step at most."""

FADING = 0.8
"""The factor of an expected loss per step: eventually all changes are evaluated again."""

LEADERS = 16
"""How many of the best drafts are kept."""

LEAST_GAIN = 1e-9
"""Smaller gains are rounding."""

DraftScore = Callable[[Sequence[Draft]], Tensor]
"""Returns the values of drafts; larger is better."""

Suggest = Callable[[Sequence[int]], Sequence[Iterable[int]]]
"""Takes the words of a draft; returns words for its first position, the second, and so on, and after the last."""


class LazyClimb:
    """A hill climb over drafts that can be continued with more words.

    Args:
        score: the values of drafts.
        suggest: proposes words for each position of a draft.
        longest: the greatest number of words.
        resize: whether the number of words may change.
        deadline: when to stop.
        rearrange: proposes other orders of the words where no change of a word helps; nothing if None.
    """

    def __init__(
        self,
        score: DraftScore,
        suggest: Suggest,
        longest: int,
        *,
        resize: bool,
        deadline: Deadline | None = None,
        rearrange: Rearrange | None = None,
    ) -> None:
        self.deadline = deadline or Deadline()
        self._rearrange = rearrange or (lambda _: ())
        self._score, self._suggest, self.longest, self._resize = score, suggest, longest, resize
        self._word_gains: dict[int, float] = {}  # the last gain of each word
        self._change_gains: dict[Change, tuple[float, int]] = {}  # the last gain of each change, and its step
        self._steps = 0
        self._best: dict[tuple[int, ...], float] = {}
        self.tried = 0

    @property
    def leaders(self) -> list[tuple[int, ...]]:
        """The words of the best drafts so far, the best first."""
        return list(self._best)

    def learn(self, tokens: Iterable[int]) -> None:
        """Add words, which are then tried first."""
        self._word_gains |= dict.fromkeys(tokens, inf)

    def consider(self, changes: Iterable[Change]) -> None:
        """Add single changes, which are then tried first."""
        self._change_gains |= dict.fromkeys(changes, (inf, self._steps))

    def run(self, draft: Draft, most: int) -> tuple[Draft, float]:
        """Return a draft that none of the most promising changes improves, and its value.

        Args:
            draft: where to start.
            most: how many drafts are evaluated before the climb is given up.
        """
        (value,) = self._values([draft])
        end = self.tried + most

        def step(current: Draft, best: tuple[Draft, float]) -> tuple[Draft, float] | None:
            if self.tried >= end or self.deadline.passed:
                return None
            return self._step(current, best[1]) or self._rearranged(current, best[1])

        return hill_climb((draft, value), step)

    def nearby(self, draft: Draft) -> list[Draft]:
        """Return the drafts after the most promising changes of one, the best first."""
        changes = self._changes(draft)[:AT_ONCE]
        drafts = [draft.after([change]) for change in changes]
        value, *values = self._values([draft, *drafts])
        self._remember(changes, [after - value for after in values])
        return [drafts[number] for number in sorted(range(len(drafts)), key=lambda number: -values[number])]

    def _step(self, draft: Draft, value: float) -> tuple[Draft, float] | None:
        """Return a better draft; None if no change that may bring a gain leads to one."""
        changes = self._changes(draft)
        for first in range(0, len(changes), AT_ONCE):
            tried = changes[first : first + AT_ONCE]
            hopeless = first >= IDLE * AT_ONCE and not self._expected_gain(tried[0]) > 0
            if hopeless or (first and self.deadline.passed):
                break
            drafts = [draft.after([change]) for change in tried]
            values = self._values(drafts)
            gains = [after - value for after in values]
            self._remember(tried, gains)
            if max(gains) > LEAST_GAIN:
                return self._combined(draft, value, tried, list(zip(values, drafts, strict=True)))
        return None

    def _rearranged(self, draft: Draft, value: float) -> tuple[Draft, float] | None:
        """Return the best draft with the same words in another order; None if none is better."""
        drafts = [] if self.deadline.passed else self._rearrange(draft)
        best = max(zip(self._values(drafts), drafts, strict=True), key=lambda pair: pair[0], default=(value, draft))
        return (best[1], best[0]) if best[0] > value + LEAST_GAIN else None

    def _changes(self, draft: Draft) -> list[Change]:
        """Return the changes of a draft, the most promising first."""
        self._steps += 1
        there = {START, *draft.names}
        changes = [change for change, (gain, _) in self._change_gains.items() if gain == inf and change.name in there]
        changes += possible_changes(draft, self._word_gains, self._suggest(draft.tokens), resize=self._resize)
        changes = list(dict.fromkeys(changes))
        if len(draft.tokens) >= self.longest:
            changes = [change for change in changes if change.kind != "insert"]
        return sorted(changes, key=self._expected_gain, reverse=True)

    def _combined(
        self, draft: Draft, value: float, tried: Sequence[Change], outcomes: Sequence[tuple[float, Draft]]
    ) -> tuple[Draft, float]:
        """Return the best of the drafts after single changes, and after the best few changes at once."""
        order = sorted(range(len(tried)), key=lambda number: -outcomes[number][0])
        best = [number for number in order[:COMBINED] if outcomes[number][0] > value]
        several = [draft.after(tried[number] for number in best[:length]) for length in range(2, len(best) + 1)]
        several = [each for each in several if len(each.tokens) <= self.longest]
        found = [outcomes[order[0]], *zip(self._values(several), several, strict=True)]
        most, chosen = max(found, key=lambda pair: pair[0])
        return chosen, most

    def _expected_gain(self, change: Change) -> float:
        """Return the gain that a change is expected to bring."""
        if change.kind == "delete":
            return inf
        if change in self._change_gains:
            gain, step = self._change_gains[change]
            return gain if gain > 0 else gain * FADING ** (self._steps - step)
        if change.kind in ("insert", "replace"):
            return self._word_gains.get(change.other, inf)
        return inf

    def _remember(self, changes: Sequence[Change], gains: Sequence[float]) -> None:
        self._change_gains |= {change: (gain, self._steps) for change, gain in zip(changes, gains, strict=True)}
        brought: dict[int, float] = {}
        for change, gain in zip(changes, gains, strict=True):
            if change.kind in ("insert", "replace"):
                brought[change.other] = max(gain, brought.get(change.other, -inf))
        self._word_gains |= brought

    def _values(self, drafts: Sequence[Draft]) -> list[float]:
        self.tried += len(drafts)
        values: list[float] = self._score(drafts).tolist() if drafts else []
        self._best |= {draft.tokens: value for value, draft in zip(values, drafts, strict=True)}
        leaders = sorted(self._best, key=self._best.__getitem__, reverse=True)[:LEADERS]
        self._best = {tokens: self._best[tokens] for tokens in leaders}
        return values
