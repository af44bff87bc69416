"""From what was read to a reconstruction: in the order that is known, and complete where something is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.exchange import Knowledge
from gradleak.optimisation.slots import impossible_words
from gradleak.targets import Target

Sentence = tuple[int, ...]


def arranged(sentences: Sequence[Sentence], labels: Sequence[int] | None, known: Knowledge) -> list[int | None]:
    """Return for each sequence that the attacker knows of the sentence that suits what is known of it best.

    With nothing known, the sentences stay as they are.
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


def fitted(target: Target, sentence: Sentence, length: int, filler: Sentence) -> Sentence:
    """Return a sentence of exactly this length: cut, or lengthened by the filler's tokens at these places."""
    before, after = target.special_tokens
    inner = sentence[len(before) : len(sentence) - len(after) or None] if sentence else ()
    room = length - len(before) - len(after)
    inner = (*inner, *filler[len(before) + len(inner) : len(before) + room])
    return (*before, *inner[:room], *after)


def likeliest(target: Target, inputs: Inputs, space: Subspace, words: Tensor, length: int, choice: int) -> Sentence:
    """Return the words of which most lies in the row space, position by position: a guess where nothing is certain.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        space: the row space.
        words: ids to choose from.
        length: tokens of the sentence, special ones included.
        choice: 0 for the likeliest words, 1 for the second likeliest, and so on.
    """
    before, after = target.special_tokens
    words = words[~torch.isin(words, impossible_words(target))]
    places = torch.arange(len(before), length - len(after), device=words.device)
    captured = inputs.captured(space.basis, words, places)
    rank = min(choice, len(words) - 1)
    inner = words[captured.topk(rank + 1, dim=0).indices[rank]]
    return (*before, *inner.tolist(), *after)
