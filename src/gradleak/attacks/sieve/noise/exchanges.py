"""Words exchanged between the sentences of a batch.

Where several sentences are read together, some words end up in the wrong one: the mean of a batch hardly depends on
it. To move one word at a time does not help, since the rest of its phrase stays behind. So phrases of a few words
are moved. A phrase that is hardly missed is tried in every gap of every other sentence; the loss of the one and the
gain of the other predict which moves are worth comparing as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from gradleak.attacks.sieve.noise.drafts import Draft

PHRASE = 4
"""The greatest number of words that are moved together."""

PHRASES = 6
"""How many phrases of each sentence are tried elsewhere: those least missed."""

COMPARED = 12
"""How many moves are compared as a whole."""

DraftValues = Callable[[int, Sequence[Draft]], Tensor]
"""Takes the number of a sentence and drafts of it, and returns their values beside the other sentences."""

BatchValues = Callable[[Sequence[Mapping[int, Draft]]], Tensor]
"""Returns the values of whole batches, each a draft for every number."""


class _Phrase(NamedTuple):
    """A phrase of a sentence: its number, the words, the draft without them, and what is lost."""

    number: int
    tokens: tuple[int, ...]
    without: Draft
    change: float


def best_exchange(
    drafts: Mapping[int, Draft], values: DraftValues, whole: BatchValues, longest: int
) -> dict[int, Draft] | None:
    """Return the batch after the best move of a phrase from one sentence to another; None if none improves it.

    Args:
        drafts: the sentences by number.
        values: the values of drafts of one sentence.
        whole: the values of whole batches.
        longest: the greatest number of words of a sentence.
    """
    phrases = [phrase for number, draft in drafts.items() for phrase in _dispensable(number, draft, values)]
    moves: list[tuple[float, dict[int, Draft]]] = []
    for number, draft in drafts.items():
        fitting = [
            each for each in phrases if each.number != number and len(draft.tokens) + len(each.tokens) <= longest
        ]
        tried = [(phrase, gap) for phrase in fitting for gap in range(len(draft.tokens) + 1)]
        if not tried:
            continue
        after = [Draft.of((*draft.tokens[:gap], *phrase.tokens, *draft.tokens[gap:])) for phrase, gap in tried]
        before, *found = values(number, [draft, *after]).tolist()
        for (phrase, _), changed, value in zip(tried, after, found, strict=True):
            moves.append((value - before + phrase.change, {phrase.number: phrase.without, number: changed}))
    moves.sort(key=lambda move: -move[0])
    batches = [dict(drafts), *({**drafts, **changed} for _, changed in moves[:COMPARED])]
    totals = whole(batches)
    best = int(totals.argmax())
    return batches[best] if best else None


def _dispensable(number: int, draft: Draft, values: DraftValues) -> list[_Phrase]:
    """Return the phrases of a sentence that are least missed."""
    words = draft.tokens
    spans = [(first, first + size) for size in range(1, PHRASE + 1) for first in range(len(words) - size + 1)]
    spans = [span for span in spans if span[1] - span[0] < len(words)]
    if not spans:
        return []
    without = [Draft.of((*words[:first], *words[last:])) for first, last in spans]
    before, *found = values(number, [draft, *without]).tolist()
    order = sorted(range(len(spans)), key=lambda place: -found[place])[:PHRASES]
    return [
        _Phrase(number, words[spans[place][0] : spans[place][1]], without[place], found[place] - before)
        for place in order
    ]
