"""Word order at the end of a hybrid attack, or as soon as the words are stable; gradleak's own, in no paper.

Used by LAMP: often all words are right long before their order is.
"""

from __future__ import annotations

from collections import defaultdict

from gradleak.exchange import Finding
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.guess import Guess, keep_better
from gradleak.optimisation.reorder import put_in_order
from gradleak.targets import Target

# Retire solved victims when they are a quarter: each removal copies gradients and re-records CUDA graphs.
RETIRED_SHARE = 4
# Rounds that change no word, after which none is expected to, where words are put in order early.
STALLED_ROUNDS = 3

Bag = tuple[tuple[int, ...], ...]
"""The words of a batch, sequence by sequence, in sorted order."""


class WordOrder:
    """Put words in order, retire victims that are done, and turn words into findings.

    Args:
        iterations: how often words are moved to a nearer order, at most; 0 to leave them.
        early: put words in order as soon as a round has not changed them, and retire victims that are stalled.
    """

    def __init__(self, iterations: int, *, early: bool) -> None:
        self._iterations, self._early = iterations, early
        self._rounds: dict[int, list[Bag]] = defaultdict(list)  # the words that each victim's rounds ended with
        self._ordered: dict[int, set[Bag]] = defaultdict(set)  # words that were put in order already

    def after_round(self, cohort: Cohort) -> None:
        """Put words in order that the last round did not change, if that is to be done early."""
        if not self._early or cohort.deadline.passed:
            return
        words = cohort.nearest_words(cohort.descender.now)
        start = words.losses.argmin(dim=1, keepdim=True)
        words = words.starts(start)
        bags = _bags(cohort.target, words)
        for number, bag in zip(cohort.numbers, bags, strict=True):
            self._rounds[number].append(bag)
        unchanged = [place for place, number in enumerate(cohort.numbers) if self._unchanged(number, 1)]
        new = [place for place in unchanged if self._claim(cohort.numbers[place], bags[place])]
        if new:
            ordered = put_in_order(cohort.matcher.select(new), words.select(new), self._iterations)
            nearest = cohort.words.select(new).starts(start[new])
            cohort.words = cohort.words.put(new, start[new], keep_better(nearest, ordered, ordered.losses))

    def done(self, cohort: Cohort) -> list[bool]:
        """Return which victims to retire: those that are solved, or whose words the last rounds did not change."""
        done = [
            solved or self._unchanged(number, STALLED_ROUNDS)
            for number, solved in zip(cohort.numbers, cohort.solved(), strict=True)
        ]
        # Retire stalled victims at once, or their result would depend on the rest of the batch.
        together = RETIRED_SHARE * sum(done) >= len(done) or self._early
        return done if together else [False] * len(done)

    def finish(self, cohort: Cohort) -> dict[int, Finding]:
        """Put the words of several states in order, and return the nearest: right words in a wrong order may be far."""
        if not cohort.numbers:
            return {}
        nearest = cohort.words.best_starts(1)
        found = cohort.findings(nearest)
        if self._iterations and cohort.deadline.passed:
            return found
        solved, descender = cohort.solved(), cohort.descender
        states = [cohort.nearest_words(state).best_starts(1) for state in (descender.now, descender.best)]
        for number, words in enumerate([nearest, *states]):
            places = [place for place, is_solved in enumerate(solved) if not (number and is_solved)]
            if self._early:
                bags = _bags(cohort.target, words)
                places = [place for place in places if self._claim(cohort.numbers[place], bags[place])]
            if places:
                ordered = put_in_order(cohort.matcher.select(places), words.select(places), self._iterations)
                own = cohort.findings(ordered, [cohort.numbers[place] for place in places])
                for victim, finding in own.items():
                    found[victim] = min(found[victim], finding, key=lambda one: one.loss)
        return found

    def _unchanged(self, number: int, rounds: int) -> bool:
        """Return whether a victim's last rounds, as many as given, have not changed its words."""
        last = self._rounds[number][-1 - rounds :]
        return len(last) > rounds and len(set(last)) == 1

    def _claim(self, number: int, bag: Bag) -> bool:
        """Return whether words were never put in order, and record that they are now."""
        new = bag not in self._ordered[number]
        self._ordered[number].add(bag)
        return new


def _bags(target: Target, words: Guess) -> list[Bag]:
    """Return the words of each victim's only start, whatever their order."""
    ids = words.slots.project(target, words.embeddings)[:, 0]
    return [tuple(map(tuple, batch)) for batch in ids.sort(dim=-1).values.tolist()]
