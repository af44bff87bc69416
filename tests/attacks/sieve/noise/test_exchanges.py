from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.noise.exchanges import best_exchange

WANTED = ((1, 2, 3, 4), (5, 6, 7))


def shared(draft: Draft, wanted: Sequence[int]) -> float:
    """How many pairs of neighbours a draft has in common with a sentence, and how many words."""
    pairs = set(pairwise(draft.tokens)) & set(pairwise(wanted))
    return len(pairs) + len(set(draft.tokens) & set(wanted)) - 0.5 * len(draft.tokens)


def of_one(number: int, drafts: Sequence[Draft]) -> torch.Tensor:
    return torch.tensor([shared(draft, WANTED[number]) for draft in drafts])


def of_all(batches: Sequence[Mapping[int, Draft]]) -> torch.Tensor:
    return torch.tensor([sum(shared(batch[n], WANTED[n]) for n in batch) for batch in batches])


def test_a_phrase_in_the_wrong_sentence_is_moved_as_a_whole() -> None:
    drafts = {0: Draft.of((1, 2)), 1: Draft.of((5, 3, 4, 6, 7))}
    better = best_exchange(drafts, of_one, of_all, longest=10)
    assert better is not None
    assert tuple(better[number].tokens for number in (0, 1)) == WANTED


def test_nothing_is_moved_where_that_does_not_help_or_has_no_room() -> None:
    drafts = {number: Draft.of(words) for number, words in enumerate(WANTED)}
    assert best_exchange(drafts, of_one, of_all, longest=10) is None
    mixed = {0: Draft.of((1, 2)), 1: Draft.of((5, 3, 4, 6, 7))}
    moved = best_exchange(mixed, of_one, of_all, longest=2)
    assert moved is None
    assert best_exchange({0: Draft.of((1,)), 1: Draft.of(())}, of_one, of_all, longest=10) is None
