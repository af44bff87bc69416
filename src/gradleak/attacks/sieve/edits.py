"""The sentences one change away from a sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.search import neighbour_orders
from gradleak.targets import Target


def inside(target: Target, sentence: Tensor) -> range:
    """Return the places of the words, between the tokens that begin and end every text."""
    before, after = target.special_tokens
    return range(len(before), len(sentence) - len(after))


def reordered(sentence: Tensor, places: range) -> Tensor:
    """Return the sentence with two words swapped or one moved `[sentences, tokens]`."""
    free = torch.zeros(len(sentence), dtype=torch.bool, device=sentence.device)
    free[places.start : places.stop] = True
    return sentence[neighbour_orders(free)[1:]]


def replaced(sentence: Tensor, places: range, tokens: Tensor) -> Tensor:
    """Return the sentence with each word replaced `[places × tokens, length]`; `tokens` holds those of each place."""
    changed = sentence.repeat(len(places), tokens.shape[1], 1)
    for row, place in enumerate(places):
        changed[row, :, place] = tokens[place]
    return changed.flatten(0, 1)


def shortened(sentence: Tensor, places: range, words: int = 1) -> Tensor:
    """Return the sentence with one word taken out, or so many that follow each other `[sentences, length − words]`."""
    starts = range(places.start, places.stop - words + 1)
    return torch.stack([torch.cat([sentence[:place], sentence[place + words :]]) for place in starts])


def lengthened(sentence: Tensor, places: range, tokens: Tensor) -> Tensor:
    """Return the sentence with a word put in, before each place and after the last `[gaps × tokens, length + 1]`."""
    gaps = range(places.start, places.stop + 1)
    wider = [
        replaced(torch.cat([sentence[:gap], sentence[:1], sentence[gap:]]), range(gap, gap + 1), tokens) for gap in gaps
    ]
    return torch.cat(wider)


def neighbours(target: Target, sentence: Tensor, tokens: Tensor, longest: int, *, resize: bool = True) -> list[Tensor]:
    """Return all sentences one change away, those of one length together.

    Args:
        target: the model.
        sentence: token ids, those that begin and end every text included.
        tokens: the tokens that are tried at each place `[places, tokens]`.
        longest: the most tokens of a sentence.
        resize: whether the number of tokens may change.
    """
    places = inside(target, sentence)
    kinds = [torch.cat([reordered(sentence, places), replaced(sentence, places, tokens)])]
    fewer = range(1, 1 + min(2, len(sentence) - target.min_length)) if resize else ()
    kinds += [shortened(sentence, places, words) for words in fewer]
    if resize and len(sentence) < longest:
        kinds.append(lengthened(sentence, places, tokens))
    return kinds
