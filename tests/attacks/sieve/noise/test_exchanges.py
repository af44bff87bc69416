from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.noise.exchanges import WordPair, best_exchange, crossings

WANTED = ((1, 2, 3, 4), (5, 6, 7), (8, 9))


def alike(words: Sequence[int], wanted: Sequence[int]) -> float:
    """How many pairs of neighbours a sentence has in common with another, and how many words."""
    return len(set(pairwise(words)) & set(pairwise(wanted))) + len(set(words) & set(wanted)) - 0.5 * len(words)


def values(numbers: tuple[int, int], pairs: Sequence[WordPair]) -> torch.Tensor:
    return torch.tensor([sum(alike(pair[n], WANTED[numbers[n]]) for n in (0, 1)) for pair in pairs])


def all_alike(pairs: Sequence[WordPair]) -> torch.Tensor:
    return torch.zeros(len(pairs))


def test_ends_in_the_wrong_sentence_are_exchanged() -> None:
    drafts = {0: Draft.of((1, 2, 7)), 1: Draft.of((5, 6, 3, 4)), 2: Draft.of((8, 9))}
    better = best_exchange(drafts, values, all_alike, longest=10)
    assert better is not None
    assert tuple(better[number].tokens for number in range(3)) == WANTED


def test_nothing_is_exchanged_where_that_does_not_help() -> None:
    drafts = {number: Draft.of(words) for number, words in enumerate(WANTED)}
    assert best_exchange(drafts, values, all_alike, longest=10) is None
    assert best_exchange({0: Draft.of((1,))}, values, all_alike, longest=10) is None


def test_crossings_keep_all_words_and_their_limits() -> None:
    found = crossings(((1, 2, 3), (4, 5)), longest=4)
    assert ((1, 5), (4, 2, 3)) in found
    assert all(sorted(one + other) == [1, 2, 3, 4, 5] for one, other in found)
    assert all(0 < len(words) <= 4 for both in found for words in both)
    assert len(set(found)) == len(found)
    assert not crossings(((1,), ()), longest=4)
