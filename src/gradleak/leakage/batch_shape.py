"""Fit texts that were read to what is known of their batch: order by length and label, lengths by cutting or filling.

Used by sieve and by forest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from gradleak.exchange import Knowledge
from gradleak.targets import Target

Sentence = tuple[int, ...]
"""Token ids of a text, special tokens included."""


def arrange(sentences: Sequence[Sentence], labels: Sequence[int] | None, known: Knowledge) -> list[int | None]:
    """Return for each known sequence the index of the sentence whose length and label fit best; None for no sentence.

    If the batch size is not known, the sentences keep their order.
    """
    wanted = known.sequences
    if wanted is None:
        return list(range(len(sentences)))
    cost = np.zeros((wanted, len(sentences)))
    for slot in range(wanted):
        for number, sentence in enumerate(sentences):
            if known.lengths is not None:
                cost[slot, number] += abs(known.lengths[slot] - len(sentence))
            if known.labels is not None and labels is not None:
                cost[slot, number] += 0.5 * (known.labels[slot] != labels[number])
    order: list[int | None] = [None] * wanted
    for slot, number in zip(*linear_sum_assignment(cost), strict=True):
        order[int(slot)] = int(number)
    return order


def resize(target: Target, sentence: Sentence, length: int, filler: Sentence) -> Sentence:
    """Return a sentence of exactly this length: cut, or extended by the filler's tokens at the same positions."""
    before, after = target.special_tokens
    inner = sentence[len(before) : len(sentence) - len(after) or None] if sentence else ()
    room = length - len(before) - len(after)
    inner = (*inner, *filler[len(before) + len(inner) : len(before) + room])
    return (*before, *inner[:room], *after)
