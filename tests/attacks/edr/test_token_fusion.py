"""Tokens are fused to words that are spelled so, and words move as wholes."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import small_target
from gradleak.attacks.edr.token_fusion import LexemeMoves, Words, draw_lexemes, fuse, pieces_of_words
from gradleak.targets import Target, load_target


@functools.cache
def embedded() -> Target:
    return load_target("tiny")


@pytest.fixture
def tiny() -> Target:
    return embedded()


def token_ids(target: Target, text: str) -> list[int]:
    ids: list[int] = target.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def spelled(target: Target, lexemes: list[tuple[int, ...]]) -> set[str]:
    return {target.decode(lexeme) for lexeme in lexemes}


# --- fusing --------------------------------------------------------------------------------------------------------


def test_pieces_are_told_from_roots(tiny: Target) -> None:
    ids = token_ids(tiny, "who has seen my snorkel?")
    assert tiny.tokenizer.convert_ids_to_tokens(ids)[-4:] == ["s", "##nor", "##kel", "?"]
    assert pieces_of_words(tiny, torch.tensor(ids)).tolist() == [False] * 5 + [True, True, False]


def test_a_vocabulary_without_pieces_has_none() -> None:
    target = small_target("bert")
    ids = sorted(set(token_ids(target, "the cat sat on the mat .")))
    assert not pieces_of_words(target, torch.tensor(ids)).any()
    assert fuse(target, ids) == [(token,) for token in ids]


def test_the_papers_example_is_put_together(tiny: Target) -> None:
    ids = sorted(set(token_ids(tiny, "who has seen my snorkel?")))
    found = spelled(tiny, fuse(tiny, ids))
    assert {"snorkel", "who", "?"} <= found
    assert "##kel" not in found


def test_a_fused_word_is_encoded_into_its_tokens_again(tiny: Target) -> None:
    ids = sorted(set(token_ids(tiny, "her indiscretions were phoning gorbachev")))
    lexemes = fuse(tiny, ids)
    assert all(token_ids(tiny, tiny.decode(lexeme)) == list(lexeme) for lexeme in lexemes)
    assert all(set(lexeme) <= set(ids) for lexeme in lexemes)
    assert len(set(lexemes)) == len(lexemes)
    # "hertions" would be written with a token that was not seen, or cut otherwise: what is not possible is left out.
    tried = {(root, piece) for root in ids for piece in ids if root != piece}
    pieces = pieces_of_words(tiny, torch.tensor(ids)).tolist()
    possible = {
        pair
        for pair in tried
        if not pieces[ids.index(pair[0])]
        and pieces[ids.index(pair[1])]
        and token_ids(tiny, tiny.decode(pair)) == list(pair)
    }
    assert {lexeme for lexeme in lexemes if len(lexeme) == 2} == possible


def test_pieces_alone_make_no_word(tiny: Target) -> None:
    assert fuse(tiny, [token for token in token_ids(tiny, "snorkel") if token != token_ids(tiny, "s")[0]]) == []


# --- drawing -------------------------------------------------------------------------------------------------------


@given(room=st.integers(8, 14), seed=st.integers(0, 1_000))
def test_drawn_words_use_every_token_and_fill_the_room(room: int, seed: int) -> None:
    target = embedded()
    tokens = sorted(set(token_ids(target, "who has seen my snorkel?")))
    lexemes = fuse(target, tokens)
    drawn = draw_lexemes(lexemes, tokens, room, torch.Generator().manual_seed(seed))
    flat = [token for word in drawn for token in word]
    assert len(flat) == room
    assert set(flat) == set(tokens)
    assert set(drawn) <= set(lexemes) | {(token,) for token in tokens}


def test_pieces_without_a_root_stand_alone(tiny: Target) -> None:
    pieces = token_ids(tiny, "snorkel")[1:]
    drawn = draw_lexemes(fuse(tiny, pieces), pieces, 2, torch.Generator().manual_seed(0))
    assert sorted(drawn) == sorted((piece,) for piece in pieces)


# --- moves ---------------------------------------------------------------------------------------------------------

PIECES = torch.tensor([False, False, True, False, True, False])  # 1 ##2 and 3 ##4 are words


def proposals(words: Words, state: list[int], heat: float, count: int = 400) -> set[tuple[int, ...]]:
    moves = LexemeMoves([words])
    numbers = torch.rand(1, 1, count, *moves.numbers, generator=torch.Generator().manual_seed(0))
    return {tuple(found) for found in moves(torch.tensor([[state]]), numbers, heat)[0, 0].tolist()}


def test_a_word_changes_places_with_its_pieces() -> None:
    words = Words(PIECES, torch.zeros(6, dtype=torch.long), repeated=False)
    found = proposals(words, [0, 1, 2, 3, 4, 5], heat=0.0)
    assert (3, 4, 1, 2, 0, 5) in found or (0, 3, 4, 1, 2, 5) in found
    assert (1, 2, 0, 3, 4, 5) in found  # swapped, inserted or reversed
    assert (0, 1, 3, 4, 2, 5) in found  # a piece tries another root
    assert all(sorted(order) == list(range(6)) for order in found)


def test_only_a_swap_leaves_the_sentence() -> None:
    words = Words(torch.zeros(6, dtype=torch.bool), torch.tensor([0, 0, 0, 1, 1, 1]), repeated=False)
    for order in proposals(words, [0, 1, 2, 3, 4, 5], heat=0.0):
        crossed = sum(token >= 3 for token in order[:3])
        assert crossed <= 1
        if crossed:
            assert sum(token != place for place, token in enumerate(order)) == 2


def test_heat_shuffles_words_but_does_not_take_them_apart() -> None:
    words = Words(PIECES, torch.zeros(6, dtype=torch.long), repeated=False)
    whole = [order for order in proposals(words, [0, 1, 2, 3, 4, 5], heat=1.0) if order.index(2) == order.index(1) + 1]
    assert len(whole) > 20


@pytest.mark.parametrize("repeated", [True, False])
def test_a_repeated_token_may_become_another_and_no_token_is_lost(repeated: bool) -> None:
    words = Words(torch.zeros(4, dtype=torch.bool), torch.zeros(6, dtype=torch.long), repeated=repeated)
    found = proposals(words, [0, 1, 2, 3, 3, 0], heat=0.0)
    assert all(set(order) == {0, 1, 2, 3} for order in found)
    assert any(sorted(order) != [0, 0, 1, 2, 3, 3] for order in found) is repeated


def test_some_places_keep_sentences_apart() -> None:
    words = Words(PIECES, torch.tensor([0, 0, 1, 1, 2, 2]), repeated=False)
    part = words.part(torch.tensor([True, True, False, False, True, True]))
    assert part.sentences.tolist() == [0, 0, 1, 1]
    assert LexemeMoves([part, words]).numbers == [6 + 4, 6 + 6]


def test_problems_of_different_sizes_move_as_each_does_alone() -> None:
    every = [
        Words(PIECES, torch.tensor([0, 0, 0, 1, 1, 1]), repeated=False),
        Words(torch.tensor([False, True]), torch.zeros(4, dtype=torch.long), repeated=True),
        Words(torch.tensor([False]), torch.zeros(1, dtype=torch.long), repeated=False),
    ]
    states = [[3, 4, 0, 1, 2, 5], [0, 1, 1, 0], [0]]
    together = LexemeMoves(every)
    filled = torch.tensor([[own + [together.filler] * (together.length - len(own))] for own in states])
    numbers = torch.rand(3, 1, 300, max(together.numbers), generator=torch.Generator().manual_seed(0))
    for heat in (0.0, 0.5, 1.0):
        for kept in ([0, 1, 2], [1, 2]):
            some = together.of(kept)
            found = some(filled[kept], numbers[kept, ..., : max(some.numbers)], heat)
            for place, problem in enumerate(kept):
                alone = LexemeMoves([every[problem]])
                own = numbers[problem : problem + 1, ..., : alone.numbers[0]]
                assert torch.equal(
                    found[place, ..., : alone.length], alone(torch.tensor([[states[problem]]]), own, heat)[0]
                )
                assert (found[place, ..., alone.length :] == together.filler).all()


def test_random_numbers_that_are_nearly_one_stay_within_the_text() -> None:
    words = Words(torch.zeros(40, dtype=torch.bool), torch.zeros(40, dtype=torch.long), repeated=False)
    numbers = torch.full((1, 1, 1, 46), 1 - 2**-24)
    assert LexemeMoves([words])(torch.arange(40)[None, None], numbers, 0.0).sort().values.flatten().tolist() == [
        *range(40)
    ]
