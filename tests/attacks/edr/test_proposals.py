"""Proposals of annealing move words as wholes."""

from __future__ import annotations

import itertools

import pytest
import torch

from gradleak.attacks.edr.proposals import TokenLayout, WordMoves

PIECES = torch.tensor([False, False, True, False, True, False])  # 1 ##2 and 3 ##4 are words


def proposals(layout: TokenLayout, state: list[int], heat: float, count: int = 400) -> set[tuple[int, ...]]:
    moves = WordMoves([layout])
    numbers = torch.rand(1, 1, count, *moves.numbers, generator=torch.Generator().manual_seed(0))
    return {tuple(found) for found in moves(torch.tensor([[state]]), numbers, heat)[0, 0].tolist()}


def test_a_word_changes_places_with_its_pieces() -> None:
    layout = TokenLayout(PIECES, torch.zeros(6, dtype=torch.long), repeated=False)
    found = proposals(layout, [0, 1, 2, 3, 4, 5], heat=0.0)
    assert (3, 4, 1, 2, 0, 5) in found or (0, 3, 4, 1, 2, 5) in found
    assert (1, 2, 0, 3, 4, 5) in found  # swapped, inserted or reversed
    assert (0, 1, 3, 4, 2, 5) in found  # a piece tries another root
    assert all(sorted(order) == list(range(6)) for order in found)


def test_only_a_swap_leaves_the_sentence() -> None:
    layout = TokenLayout(torch.zeros(6, dtype=torch.bool), torch.tensor([0, 0, 0, 1, 1, 1]), repeated=False)
    for order in proposals(layout, [0, 1, 2, 3, 4, 5], heat=0.0):
        crossed = sum(token >= 3 for token in order[:3])
        assert crossed <= 1
        if crossed:
            assert sum(token != place for place, token in enumerate(order)) == 2


def test_heat_shuffles_words_and_splits_at_most_the_one_that_a_chosen_place_cuts() -> None:
    layout = TokenLayout(PIECES, torch.zeros(6, dtype=torch.long), repeated=False)
    state = (0, 1, 2, 3, 4, 5)
    found = proposals(layout, list(state), heat=1.0)
    for order in found:
        pairs = set(itertools.pairwise(order))
        assert (1, 2) in pairs or (3, 4) in pairs, "only one place is chosen, and it cuts one word at most"
    whole = {order for order in found if {(1, 2), (3, 4)} <= set(itertools.pairwise(order))}
    assert len(whole) == 24, "all orders of four whole words"


@pytest.mark.parametrize("repeated", [True, False])
def test_a_repeated_token_may_become_another_and_no_token_is_lost(repeated: bool) -> None:
    layout = TokenLayout(torch.zeros(4, dtype=torch.bool), torch.zeros(6, dtype=torch.long), repeated=repeated)
    found = proposals(layout, [0, 1, 2, 3, 3, 0], heat=0.0)
    assert all(set(order) == {0, 1, 2, 3} for order in found)
    assert any(sorted(order) != [0, 0, 1, 2, 3, 3] for order in found) is repeated


def test_some_places_keep_sentences_apart() -> None:
    layout = TokenLayout(PIECES, torch.tensor([0, 0, 1, 1, 2, 2]), repeated=False)
    part = layout.select(torch.tensor([True, True, False, False, True, True]))
    assert part.sentences.tolist() == [0, 0, 1, 1]
    assert WordMoves([part, layout]).numbers == [6 + 4, 6 + 6]


def test_problems_of_different_sizes_move_as_each_does_alone() -> None:
    every = [
        TokenLayout(PIECES, torch.tensor([0, 0, 0, 1, 1, 1]), repeated=False),
        TokenLayout(torch.tensor([False, True]), torch.zeros(4, dtype=torch.long), repeated=True),
        TokenLayout(torch.tensor([False]), torch.zeros(1, dtype=torch.long), repeated=False),
    ]
    states = [[3, 4, 0, 1, 2, 5], [0, 1, 1, 0], [0]]
    together = WordMoves(every)
    filled = torch.tensor([[own + [together.filler] * (together.length - len(own))] for own in states])
    numbers = torch.rand(3, 1, 300, max(together.numbers), generator=torch.Generator().manual_seed(0))
    for heat in (0.0, 0.5, 1.0):
        for kept in ([0, 1, 2], [1, 2]):
            some = together.select(kept)
            found = some(filled[kept], numbers[kept, ..., : max(some.numbers)], heat)
            for place, problem in enumerate(kept):
                alone = WordMoves([every[problem]])
                own = numbers[problem : problem + 1, ..., : alone.numbers[0]]
                assert torch.equal(
                    found[place, ..., : alone.length], alone(torch.tensor([[states[problem]]]), own, heat)[0]
                )
                assert (found[place, ..., alone.length :] == together.filler).all()


def test_random_numbers_that_are_nearly_one_stay_within_the_text() -> None:
    layout = TokenLayout(torch.zeros(40, dtype=torch.bool), torch.zeros(40, dtype=torch.long), repeated=False)
    numbers = torch.full((1, 1, 1, 46), 1 - 2**-24)
    assert WordMoves([layout])(torch.arange(40)[None, None], numbers, 0.0).sort().values.flatten().tolist() == [
        *range(40)
    ]
