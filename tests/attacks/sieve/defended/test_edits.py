from __future__ import annotations

import torch

from gradleak.attacks.sieve.defended.edits import (
    Replacements,
    lengthened,
    neighbours,
    reordered,
    replaced,
    shortened,
    with_runs_moved,
)
from wide_targets import wider_target

SENTENCE = torch.tensor([1, 7, 8, 2])
INSIDE = range(1, 3)
TOKENS = torch.tensor([[5], [5], [6], [6]])  # one token to try at each place


def every(groups: list[torch.Tensor | Replacements]) -> list[torch.Tensor]:
    return [group.sentences if isinstance(group, Replacements) else group for group in groups]


def test_words_are_swapped_between_the_tokens_that_begin_and_end_a_text() -> None:
    assert reordered(SENTENCE, INSIDE).tolist() == [[1, 8, 7, 2]]


def test_adjacent_words_are_moved_together() -> None:
    moved = with_runs_moved(torch.tensor([1, 7, 8, 9, 2]), range(1, 4)).tolist()
    assert [1, 9, 7, 8, 2] in moved
    assert [1, 8, 9, 7, 2] in moved
    assert all(sorted(row) == [1, 2, 7, 8, 9] and (row[0], row[-1]) == (1, 2) for row in moved)


def test_each_word_is_replaced_by_the_tokens_of_its_place() -> None:
    assert replaced(SENTENCE, INSIDE, TOKENS).sentences.tolist() == [[1, 5, 8, 2], [1, 7, 6, 2]]


def test_each_word_is_taken_out() -> None:
    assert shortened(SENTENCE, INSIDE).tolist() == [[1, 8, 2], [1, 7, 2]]
    assert shortened(torch.tensor([1, 7, 8, 9, 2]), range(1, 4), 2).tolist() == [[1, 9, 2], [1, 7, 2]]


def test_a_word_is_put_in_before_each_word_and_after_the_last() -> None:
    assert lengthened(SENTENCE, INSIDE, TOKENS).sentences.tolist() == [
        [1, 5, 7, 8, 2],
        [1, 7, 6, 8, 2],
        [1, 7, 8, 6, 2],
    ]


def test_neighbours_keep_to_the_lengths_that_are_allowed() -> None:
    target = wider_target()
    before, after = target.special_tokens
    shortest = torch.tensor([*before, 7, *after])
    assert len(shortest) == target.min_length
    tokens = torch.tensor([[5, 6]]).expand(4, -1)
    for sentence in (shortest, SENTENCE):
        assert {group.shape[1] for group in every(neighbours(target, sentence, tokens, 4))} == {3, 4}
