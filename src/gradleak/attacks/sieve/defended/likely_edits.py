"""Edits that do not depend on what an update shows of single words: other forms of a word, and what one would expect.

Some words leave less in the first layers than others do by chance, so a search over the words that stand out misses
them. The update of the whole batch still tells them from others.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.edits import word_positions
from gradleak.attacks.sieve.expected_words import expected_words
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.targets import Target

SIMILAR = 8
"""How many words are tried in place of one that they resemble."""


def similar_words(target: Target, words: Tensor, tokens: Tensor) -> Tensor:
    """Return the words whose embeddings are most like those of tokens, itself among them `[tokens, words]`.

    Args:
        target: the model.
        words: the ids to choose from.
        tokens: token ids.
    """
    directions = target.word_directions
    return words[(directions[tokens] @ directions[words].T).topk(min(SIMILAR + 1, len(words)), dim=1).indices]


def likely_edits(observed: ObservedUpdate, sentence: Tensor, *, resize: bool = True) -> list[Tensor]:
    """Return a sentence with a word replaced by one like it, or with one that a language model expects there.

    Args:
        observed: the update.
        sentence: token ids, those that begin and end every text included.
        resize: whether words may be inserted.

    Returns:
        the sentences of each length `[sentences, tokens]`.
    """
    edits = dict.fromkeys(_edits(observed, sentence, resize=resize))
    edits.pop(tuple(sentence.tolist()), None)
    lengths = dict.fromkeys(map(len, edits))
    return [torch.tensor([ids for ids in edits if len(ids) == length], device=sentence.device) for length in lengths]


def _edits(observed: ObservedUpdate, sentence: Tensor, *, resize: bool) -> Iterator[tuple[int, ...]]:
    ids = sentence.tolist()
    places = word_positions(observed.target, sentence)
    expected = expected_words(observed, observed.load_prior())(ids[places.start : places.stop])
    for place, words in zip(
        places, similar_words(observed.target, observed.words, sentence[list(places)]), strict=True
    ):
        for word in (*words.tolist(), *expected[place - places.start]):
            yield (*ids[:place], word, *ids[place + 1 :])
    if resize and len(ids) < observed.longest:
        for number, words in enumerate(expected):
            for word in words:
                yield (*ids[: places.start + number], word, *ids[places.start + number :])
