from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from gradleak.attacks.sieve.noise import exchanges
from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.noise.exchanges import Continuations, WordPair, best_exchange, crossed, crossings

WANTED = ((1, 2, 3, 4), (5, 6, 7), (8, 9))
END = 11


def alike(words: Sequence[int], wanted: Sequence[int]) -> float:
    """How many pairs of neighbours a sentence has in common with another, and how many words."""
    return len(set(pairwise(words)) & set(pairwise(wanted))) + len(set(words) & set(wanted)) - 0.5 * len(words)


def values(numbers: tuple[int, int], pairs: Sequence[WordPair]) -> torch.Tensor:
    return torch.tensor([sum(alike(pair[n], WANTED[numbers[n]]) for n in (0, 1)) for pair in pairs])


def continuations(words: tuple[int, ...]) -> torch.Tensor:
    """After n comes n + 1, or the end after the last word."""
    lasts = {wanted[-1] for wanted in WANTED}
    chances = torch.full((len(words) + 1, 12), -10.0)
    for place, word in enumerate(words, start=1):
        chances[place, END if word in lasts else word + 1] = 0.0
    return chances


@pytest.mark.parametrize("chosen", [None, continuations])
def test_ends_in_the_wrong_sentence_are_exchanged(
    chosen: Continuations | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "COMPARED", 2)
    drafts = {0: Draft.of((1, 2, 7)), 1: Draft.of((5, 6, 3, 4)), 2: Draft.of((8, 9))}
    better = best_exchange(drafts, values, chosen, END, longest=10)
    assert better is not None
    assert tuple(better[number].tokens for number in range(3)) == WANTED


@pytest.mark.parametrize("chosen", [None, continuations])
def test_nothing_is_exchanged_where_that_does_not_help(chosen: Continuations | None) -> None:
    drafts = {number: Draft.of(words) for number, words in enumerate(WANTED)}
    assert best_exchange(drafts, values, chosen, END, longest=10) is None
    assert best_exchange({0: Draft.of((1,))}, values, chosen, END, longest=10) is None


def test_crossings_keep_all_words_and_their_limits() -> None:
    pair = ((1, 2, 3), (4, 5))
    found = [crossed(pair, *cut) for cut in crossings(pair, longest=4)]
    assert ((1, 5), (4, 2, 3)) in found
    assert pair not in found
    assert all(sorted(one + other) == [1, 2, 3, 4, 5] for one, other in found)
    assert all(0 < len(words) <= 4 for both in found for words in both)
    assert len(set(found)) == len(found)
