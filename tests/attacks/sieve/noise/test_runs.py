from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.noise.lazy_climb import LazyClimb
from gradleak.attacks.sieve.noise.runs import COMPARED, runs_moved

RIGHT = (1, 2, 3, 4, 5, 6, 7, 8)
MOVED = (5, 6, 7, 8, 1, 2, 3, 4)
END = 9


def counting(words: tuple[int, ...]) -> torch.Tensor:
    """A language model that expects each word to be followed by the next number."""
    chances = torch.full((len(words) + 1, 10), -10.0)
    for number, word in enumerate((0, *words)):
        chances[number, min(word + 1, END)] = -0.1
    return chances


def test_the_run_after_which_a_sentence_reads_best_is_moved_first_and_words_keep_their_names() -> None:
    draft = Draft.of(MOVED)
    moved = runs_moved(draft, counting, END)
    assert moved[0].tokens == RIGHT
    names = dict(zip(draft.names, draft.tokens, strict=True))
    assert all([names[name] for name in each.names] == list(each.tokens) for each in moved)
    assert all(sorted(each.tokens) == sorted(RIGHT) for each in moved)
    assert len({each.tokens for each in moved}) == len(moved) <= COMPARED


def test_without_a_language_model_or_in_short_sentences_no_run_is_moved() -> None:
    assert runs_moved(Draft.of(MOVED), None, END) == []
    assert runs_moved(Draft.of((1, 2, 3)), counting, END) == []


def test_a_climb_goes_on_with_moved_runs_where_no_change_of_a_word_helps() -> None:
    def only_the_right_order_counts(drafts: Sequence[Draft]) -> torch.Tensor:
        return torch.tensor([float(draft.tokens == RIGHT) for draft in drafts], dtype=torch.float64)

    def nothing(tokens: Sequence[int]) -> list[list[int]]:
        return [[] for _ in range(len(tokens) + 1)]

    for rearrange, found in ((lambda draft: runs_moved(draft, counting, END), RIGHT), (None, MOVED)):
        climb = LazyClimb(only_the_right_order_counts, nothing, 12, resize=False, rearrange=rearrange)
        assert climb.run(Draft.of(MOVED), 10_000)[0].tokens == found
