"""The sentences one edit away from a sentence: reordered, with a word replaced, removed or inserted."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Replacements:
    """Sentences that differ in one word from a few others, by which they are scored faster than one by one.

    Attributes:
        bases: those few `[bases, length]`.
        places: the position of the word in each `[bases]`.
        tokens: the words to put there `[bases, words]`.
    """

    bases: Tensor
    places: Tensor
    tokens: Tensor

    @property
    def sentences(self) -> Tensor:
        """All of them `[bases × words, length]`."""
        changed = self.bases[:, None].repeat(1, self.tokens.shape[1], 1)
        places = self.places[:, None, None].expand(-1, self.tokens.shape[1], 1)
        return changed.scatter_(2, places, self.tokens[..., None]).flatten(0, 1)


def replaced(sentence: Tensor, places: range, tokens: Tensor) -> Replacements:
    """Return the sentence with each word replaced by the tokens of its position.

    Args:
        sentence: token ids.
        places: the positions of the words.
        tokens: the tokens to try at each position `[positions, tokens]`.
    """
    chosen = torch.tensor(list(places), device=sentence.device, dtype=torch.long)
    return Replacements(sentence.repeat(len(places), 1), chosen, tokens[chosen])


def shortened(sentence: Tensor, places: range, words: int = 1) -> Tensor:
    """Return the sentence with one word, or so many adjacent words, removed `[sentences, length − words]`."""
    starts = range(places.start, places.stop - words + 1)
    return torch.stack([torch.cat([sentence[:place], sentence[place + words :]]) for place in starts])


def widened(sentence: Tensor, gap: int) -> Tensor:
    """Return the sentence with room for one more token at a position; what is there is to be replaced."""
    return torch.cat([sentence[:gap], sentence[:1], sentence[gap:]])


def lengthened(sentence: Tensor, places: range, tokens: Tensor) -> Replacements:
    """Return the sentence with a word inserted before each word and after the last."""
    gaps = torch.arange(places.start, places.stop + 1, device=sentence.device)
    return Replacements(torch.stack([widened(sentence, gap) for gap in gaps.tolist()]), gaps, tokens[gaps])


def neighbours(
    target: Target, sentence: Tensor, tokens: Tensor, longest: int, *, resize: bool = True
) -> list[Tensor | Replacements]:
    """Return all sentences one edit away, in groups of one length, each `[sentences, tokens]` or replacements.

    Args:
        target: the model.
        sentence: token ids, those that begin and end every text included.
        tokens: the tokens to try at each position `[positions, tokens]`.
        longest: the greatest number of tokens of a sentence.
        resize: whether the number of tokens may change.
    """
    places = word_positions(target, sentence)
    groups: list[Tensor | Replacements] = [reordered(sentence, places), replaced(sentence, places, tokens)]
    fewer = range(1, 1 + min(2, len(sentence) - target.min_length)) if resize else ()
    groups += [shortened(sentence, places, words) for words in fewer]
    if resize and len(sentence) < longest:
        groups.append(lengthened(sentence, places, tokens))
    return groups
