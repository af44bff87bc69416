"""TokenFusion: fuse a set of tokens, some of which are pieces of words, to whole words (EDR, section 4.1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.targets import Target

FusedWord = tuple[int, ...]
"""The token ids of a word: a root, and the pieces that follow it."""

MAX_PIECES = 5  # words of more pieces are rare, and the combinations of many pieces too many to try
MAX_WORDS = 2_000


def pieces_of_words(target: Target, tokens: Tensor) -> Tensor:
    """Tell which tokens `[…]` continue a word, such as `##ing`."""
    vocabulary: dict[str, int] = target.tokenizer.get_vocab()
    # ## marks a piece; Ġ and ▁ mark a root.
    mark = next((mark for mark in ("##", "Ġ", "▁") if any(word.startswith(mark) for word in vocabulary)), None)
    words = target.tokenizer.convert_ids_to_tokens(tokens.flatten().tolist())
    return torch.tensor([_continues(word, mark) for word in words]).view(tokens.shape)


def fuse(target: Target, tokens: Sequence[int], deadline: Deadline | None = None) -> list[FusedWord]:
    """Return all words that can be composed of a set of tokens, single roots included.

    A root and pieces are a word if the tokenizer encodes its spelling into these tokens again. WordPiece, which matches
    the longest piece first, splits the beginning of a word as it splits the whole word: a sequence of tokens that does
    not encode to itself need not be extended.

    Args:
        target: the model whose tokenizer is used.
        tokens: ids of the tokens, each once.
        deadline: when to stop looking for more words.
    """
    deadline = deadline or Deadline()
    continues = pieces_of_words(target, torch.tensor(tokens)).tolist()
    roots = [token for token, piece in zip(tokens, continues, strict=True) if not piece]
    pieces = [token for token, piece in zip(tokens, continues, strict=True) if piece]
    found: list[FusedWord] = [(root,) for root in roots]
    longest: list[FusedWord] = [(root,) for root in roots if root not in target.tokenizer.all_special_ids]
    while longest and pieces and len(longest[0]) <= MAX_PIECES and len(found) < MAX_WORDS:
        tried = ((*word, piece) for word in longest for piece in pieces if piece not in word)
        in_time = itertools.takewhile(lambda _: not deadline.passed, tried)
        longest = [word for word in in_time if _encodes_to_itself(target.tokenizer, word)]
        found = found + longest
    return found


def draw_words(
    words: Sequence[FusedWord], tokens: Sequence[int], room: int, generator: torch.Generator
) -> list[FusedWord]:
    """Draw words in random order that use every token at least once and have `room` tokens in total.

    Each piece goes into a random word of tokens that are not used yet, or becomes a word by itself where there is no
    such word. The rest of the room is filled with tokens drawn again: a text may hold a token several times.

    Args:
        words: the words to choose from.
        tokens: ids of the tokens, each once; no more than `room`.
        room: how many tokens there are, repetitions included.
        generator: source of randomness, on the CPU.
    """
    unused = set(tokens)
    drawn: list[FusedWord] = []
    for index in torch.randperm(len(words), generator=generator).tolist():
        if len(words[index]) > 1 and unused.issuperset(words[index]):
            drawn.append(words[index])
            unused.difference_update(words[index])
    drawn += [(token,) for token in tokens if token in unused]
    missing = room - len(tokens)
    drawn += [(tokens[index],) for index in torch.randint(len(tokens), (missing,), generator=generator).tolist()]
    return [drawn[index] for index in torch.randperm(len(drawn), generator=generator).tolist()]


def _continues(word: str, mark: str | None) -> bool:
    if mark is None:
        return False
    if mark == "##":
        return word.startswith(mark) and word != mark
    return word.isalpha() and not word.startswith(mark)  # punctuation has no mark either, and is no piece of a word


def _encodes_to_itself(tokenizer: Any, word: FusedWord) -> bool:  # noqa: ANN401
    """Return whether the spelling of a word is encoded into the same tokens."""
    return tuple(tokenizer(tokenizer.decode(list(word)), add_special_tokens=False)["input_ids"]) == word
