"""Words exchanged between the sentences of a batch.

Where several sentences are read together, half of one often continues as half of another: the mean of a batch depends
less on what belongs together than on the words. To move one word at a time does not help, since the rest stays behind.
So what follows a place in one sentence is exchanged for what follows a place in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from torch import Tensor

from gradleak.attacks.sieve.expected_words import Continuations
from gradleak.attacks.sieve.noise.drafts import Draft

COMPARED = 32
"""How many exchanges of two sentences are compared with the update: those that read best."""

Words = tuple[int, ...]
WordPair = tuple[Words, Words]

PairValues = Callable[[tuple[int, int], Sequence[WordPair]], Tensor]
"""Takes the numbers of two sentences and words for both; returns the values of the batch with these."""


def crossings(pair: WordPair, longest: int) -> list[tuple[int, int]]:
    """Return the places in two sentences after which their ends can be exchanged; none becomes empty or too long."""
    one, other = pair
    return [
        (first, second)
        for first in range(len(one) + 1)
        for second in range(len(other) + 1)
        if (first, second) not in ((0, 0), (len(one), len(other)))
        and all(0 < len(words) <= longest for words in crossed(pair, first, second))
    ]


def crossed(pair: WordPair, first: int, second: int) -> WordPair:
    """Return two sentences after what follows a place in each was exchanged."""
    one, other = pair
    return one[:first] + other[second:], other[:second] + one[first:]


def best_exchange(
    drafts: Mapping[int, Draft], values: PairValues, continuations: Continuations | None, end: int, longest: int
) -> dict[int, Draft] | None:
    """Return the batch after the best exchange between two sentences; None if none improves it.

    Args:
        drafts: the sentences by number.
        values: the values of a batch with two sentences changed.
        continuations: what a language model expects after each word; None to compare all exchanges.
        end: the token that follows the last word.
        longest: the greatest number of words of a sentence.
    """
    best: tuple[float, dict[int, Draft]] | None = None
    expected = {number: continuations(draft.tokens) for number, draft in drafts.items()} if continuations else None
    for one, other in combinations(sorted(drafts), 2):
        pair = (drafts[one].tokens, drafts[other].tokens)
        cuts = crossings(pair, longest)
        if expected is not None:
            ends = ((*pair[0], end), (*pair[1], end))
            cuts.sort(key=lambda cut: _junctions(expected[one], expected[other], ends, cut), reverse=True)
            cuts = cuts[:COMPARED]
        if not cuts:
            continue
        tried = [crossed(pair, *cut) for cut in cuts]
        before, *after = values((one, other), [pair, *tried]).tolist()
        if max(after) - before > (best[0] if best else 0.0):
            first, second = tried[after.index(max(after))]
            best = max(after) - before, {**drafts, one: Draft.of(first), other: Draft.of(second)}
    return best[1] if best else None


def _junctions(one: Tensor, other: Tensor, ends: WordPair, cut: tuple[int, int]) -> float:
    """Return how much likelier the words after the cuts are where they come than where they were."""
    (first, second), (ahead, behind) = cut, ends
    after = one[first, behind[second]] + other[second, ahead[first]]
    return float(after - one[first, ahead[first]] - other[second, behind[second]])
