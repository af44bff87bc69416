"""Words exchanged between the sentences of a batch.

Where several sentences are read together, half of one often continues as half of another: the mean of a batch depends
less on what belongs together than on the words. To move one word at a time does not help, since the rest stays behind.
So what follows a place in one sentence is exchanged for what follows a place in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from gradleak.attacks.sieve.noise.drafts import Draft

COMPARED = 32
"""How many exchanges of two sentences are compared with the update: those that read best."""

Words = tuple[int, ...]
WordPair = tuple[Words, Words]

PairValues = Callable[[tuple[int, int], Sequence[WordPair]], Tensor]
"""Takes the numbers of two sentences and words for both; returns the values of the batch with these."""


def crossings(pair: WordPair, longest: int) -> list[WordPair]:
    """Return two sentences after each exchange of their ends that leaves none empty or too long, each once."""
    one, other = pair
    found = {
        (one[:first] + other[second:], other[:second] + one[first:])
        for first in range(len(one) + 1)
        for second in range(len(other) + 1)
    }
    found -= {pair, (other, one)}
    return sorted(both for both in found if all(0 < len(words) <= longest for words in both))


def best_exchange(
    drafts: Mapping[int, Draft], values: PairValues, readable: Callable[[Sequence[WordPair]], Tensor], longest: int
) -> dict[int, Draft] | None:
    """Return the batch after the best exchange between two sentences; None if none improves it.

    Args:
        drafts: the sentences by number.
        values: the values of a batch with two sentences changed.
        readable: how well pairs of sentences read; larger is better.
        longest: the greatest number of words of a sentence.
    """
    best: tuple[float, dict[int, Draft]] | None = None
    numbers = sorted(drafts)
    for place, one in enumerate(numbers):
        for other in numbers[place + 1 :]:
            now = (drafts[one].tokens, drafts[other].tokens)
            tried = crossings(now, longest)
            if not tried:
                continue
            tried = [tried[number] for number in readable(tried).argsort(descending=True, stable=True)[:COMPARED]]
            before, *after = values((one, other), [now, *tried]).tolist()
            gain = max(after) - before
            if gain > (best[0] if best else 0.0):
                first, second = tried[after.index(max(after))]
                best = gain, {**drafts, one: Draft.of(first), other: Draft.of(second)}
    return best[1] if best else None
