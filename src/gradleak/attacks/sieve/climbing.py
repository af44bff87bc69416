"""Climbing to a better sentence, one change after the other, without trying all changes at every step.

What a change brought the last time is a guess at what it brings now: those that brought most are tried first, and the
others not at all as long as one of these still helps (after the lazy greedy search of Minoux 1978). The guess is rough,
since words depend on each other: what brought a loss is expected to bring less of one with every step. A change that
was never tried is expected to bring what its word has brought elsewhere; one with a word never tried comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from torch import Tensor

from gradleak.attacks.sieve.drafts import START, Change, Draft, possible_changes
from gradleak.exchange import Deadline

AT_ONCE = 128
"""How many changes are tried together."""

IDLE = 2
"""So many times in a row without gain end a climb."""

TOGETHER = 4
"""How many changes are made in one step at most."""

FADING = 0.8
"""How much of a loss is still expected of a change one step later: in the end all are tried again."""

LEADERS = 16
"""How many of the best drafts are kept."""

LEAST_GAIN = 1e-9

Judge = Callable[[Sequence[Draft]], Tensor]
Suggest = Callable[[Draft], Sequence[Iterable[int]]]


class Climb:
    """A climb that can be continued with more words.

    Args:
        judge: tells how good drafts are.
        suggest: words for the first place of a draft, the second, and so on, to behind the last.
        longest: the most words.
        resize: whether the number of words may change.
        deadline: when a climb ends where it is.
    """

    def __init__(
        self, judge: Judge, suggest: Suggest, longest: int, *, resize: bool, deadline: Deadline | None = None
    ) -> None:
        self.deadline = deadline or Deadline()
        self._judge, self._suggest, self._longest, self._resize = judge, suggest, longest, resize
        self._words: dict[int, float] = {}  # what each has brought the last time
        self._changes: dict[Change, tuple[float, int]] = {}  # the same, and in which step that was
        self._steps = 0
        self._best: dict[tuple[int, ...], float] = {}
        self.tried = 0

    @property
    def leaders(self) -> list[tuple[int, ...]]:
        """The words of the best drafts so far, the best first."""
        return list(self._best)

    def learn(self, tokens: Iterable[int]) -> None:
        """Take up more words, which are then tried first."""
        self._words |= dict.fromkeys(tokens, inf)

    def consider(self, changes: Iterable[Change]) -> None:
        """Take up single changes, which are then tried first."""
        self._changes |= dict.fromkeys(changes, (inf, self._steps))

    def top(self, draft: Draft, most: int) -> tuple[Draft, float]:
        """Return a draft that none of the most promising changes makes better, and how good it is.

        Args:
            draft: where to start.
            most: how many drafts are tried before the climb is given up.
        """
        (value,) = self._values([draft])
        end = self.tried + most
        while self.tried < end and not self.deadline.passed:
            better = self._step(draft, value)
            if better is None:
                break
            draft, value = better
        return draft, value

    def _step(self, draft: Draft, value: float) -> tuple[Draft, float] | None:
        """Return a better draft; None if none of the most promising changes makes one."""
        self._steps += 1
        changes = possible_changes(draft, self._words, self._suggest(draft), resize=self._resize)
        there = {START, *draft.names}
        changes += [change for change, (gain, _) in self._changes.items() if gain == inf and change.name in there]
        if len(draft.tokens) >= self._longest:
            changes = [change for change in changes if change.kind != "insert"]
        changes.sort(key=self._hope, reverse=True)
        for first in range(0, min(len(changes), IDLE * AT_ONCE), AT_ONCE):
            tried = changes[first : first + AT_ONCE]
            if first and self.deadline.passed:
                break
            drafts = [draft.after([change]) for change in tried]
            values = self._values(drafts)
            gains = [after - value for after in values]
            self._remember(tried, gains)
            if max(gains) > LEAST_GAIN:
                return self._together(draft, tried, drafts, values, value)
        return None

    def _together(
        self, draft: Draft, tried: Sequence[Change], drafts: Sequence[Draft], values: Sequence[float], value: float
    ) -> tuple[Draft, float]:
        """Return the best draft, or that of the best changes made at once, if it is better still."""
        order = sorted(range(len(tried)), key=lambda number: -values[number])
        best = [number for number in order[:TOGETHER] if values[number] > value]
        several = [draft.after(tried[number] for number in best[:length]) for length in range(2, len(best) + 1)]
        several = [each for each in several if len(each.tokens) <= self._longest]
        found = [(values[order[0]], drafts[order[0]]), *zip(self._values(several), several, strict=True)]
        most, chosen = max(found, key=lambda pair: pair[0])
        return chosen, most

    def _hope(self, change: Change) -> float:
        """Return what a change is expected to bring."""
        if change.kind == "delete":
            return inf
        if change in self._changes:
            gain, step = self._changes[change]
            return gain if gain > 0 else gain * FADING ** (self._steps - step)
        if change.kind in ("insert", "replace"):
            return self._words.get(change.other, inf)
        return inf

    def _remember(self, changes: Sequence[Change], gains: Sequence[float]) -> None:
        self._changes |= {change: (gain, self._steps) for change, gain in zip(changes, gains, strict=True)}
        brought: dict[int, float] = {}
        for change, gain in zip(changes, gains, strict=True):
            if change.kind in ("insert", "replace"):
                brought[change.other] = max(gain, brought.get(change.other, -inf))
        self._words |= brought

    def _values(self, drafts: Sequence[Draft]) -> list[float]:
        self.tried += len(drafts)
        values: list[float] = self._judge(drafts).tolist() if drafts else []
        self._best |= {draft.tokens: value for value, draft in zip(values, drafts, strict=True)}
        leaders = sorted(self._best, key=self._best.__getitem__, reverse=True)[:LEADERS]
        self._best = {tokens: self._best[tokens] for tokens in leaders}
        return values
