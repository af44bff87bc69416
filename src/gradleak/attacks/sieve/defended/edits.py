"""The sentences one edit away from a sentence: reordered, with a word replaced, removed or inserted."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.search import all_block_shifts, neighbour_orders
from gradleak.targets import Target


def word_positions(target: Target, sentence: Tensor) -> range:
    """Return the positions of the words, between the tokens that begin and end every text."""
    before, after = target.special_tokens
    return range(len(before), len(sentence) - len(after))


def reordered(sentence: Tensor, places: range) -> Tensor:
    """Return the sentence with two words swapped or one moved `[sentences, tokens]`."""
    free = torch.zeros(len(sentence), dtype=torch.bool, device=sentence.device)
    free[places.start : places.stop] = True
    return sentence[neighbour_orders(free)[1:]]


def with_runs_moved(sentence: Tensor, places: range) -> Tensor:
    """Return the sentence with two or more adjacent words moved to another place `[sentences, tokens]`."""
    orders = all_block_shifts(len(places)).to(sentence.device)
    moved = sentence.repeat(len(orders), 1)
    moved[:, places.start : places.stop] = sentence[places.start : places.stop][orders]
    return moved


def replaced(sentence: Tensor, places: range, tokens: Tensor) -> Tensor:
    """Return the sentence with each word replaced by the tokens of its position `[places × tokens, length]`.

    Args:
        sentence: token ids.
        places: the positions of the words.
        tokens: the tokens to try at each position `[positions, tokens]`.
    """
    changed = sentence.repeat(len(places), tokens.shape[1], 1)
    for row, place in enumerate(places):
        changed[row, :, place] = tokens[place]
    return changed.flatten(0, 1)


def shortened(sentence: Tensor, places: range, words: int = 1) -> Tensor:
    """Return the sentence with one word, or so many adjacent words, removed `[sentences, length − words]`."""
    starts = range(places.start, places.stop - words + 1)
    return torch.stack([torch.cat([sentence[:place], sentence[place + words :]]) for place in starts])


def widened(sentence: Tensor, gap: int) -> Tensor:
    """Return the sentence with room for one more token at a position; what is there is to be replaced."""
    return torch.cat([sentence[:gap], sentence[:1], sentence[gap:]])


def lengthened(sentence: Tensor, places: range, tokens: Tensor) -> Tensor:
    """Return the sentence with a word inserted before each word and after the last `[gaps × tokens, length + 1]`."""
    gaps = range(places.start, places.stop + 1)
    return torch.cat([replaced(widened(sentence, gap), range(gap, gap + 1), tokens) for gap in gaps])


def neighbours(target: Target, sentence: Tensor, tokens: Tensor, longest: int, *, resize: bool = True) -> list[Tensor]:
    """Return all sentences one edit away, grouped by length.

    Args:
        target: the model.
        sentence: token ids, those that begin and end every text included.
        tokens: the tokens to try at each position `[positions, tokens]`.
        longest: the greatest number of tokens of a sentence.
        resize: whether the number of tokens may change.
    """
    places = word_positions(target, sentence)
    groups = [torch.cat([reordered(sentence, places), replaced(sentence, places, tokens)])]
    fewer = range(1, 1 + min(2, len(sentence) - target.min_length)) if resize else ()
    groups += [shortened(sentence, places, words) for words in fewer]
    if resize and len(sentence) < longest:
        groups.append(lengthened(sentence, places, tokens))
    return groups
