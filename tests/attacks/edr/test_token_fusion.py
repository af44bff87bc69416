"""Tokens are fused to words that are spelled so."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import small_target
from gradleak.attacks.edr.token_fusion import FusedWord, draw_words, fuse, pieces_of_words
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


@functools.cache
def fused(text: str) -> tuple[list[int], list[FusedWord]]:
    tokens = sorted(set(token_ids(embedded(), text)))
    return tokens, fuse(embedded(), tokens)


def spelled(target: Target, words: list[FusedWord]) -> set[str]:
    return {target.decode(word) for word in words}


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
    words = fuse(tiny, ids)
    assert all(token_ids(tiny, tiny.decode(word)) == list(word) for word in words)
    assert all(set(word) <= set(ids) for word in words)
    assert len(set(words)) == len(words)
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
    assert {word for word in words if len(word) == 2} == possible


def test_pieces_alone_make_no_word(tiny: Target) -> None:
    assert fuse(tiny, [token for token in token_ids(tiny, "snorkel") if token != token_ids(tiny, "s")[0]]) == []


# --- drawing -------------------------------------------------------------------------------------------------------


@given(room=st.integers(8, 14), seed=st.integers(0, 1_000))
def test_drawn_words_use_every_token_and_fill_the_room(room: int, seed: int) -> None:
    tokens, words = fused("who has seen my snorkel?")
    drawn = draw_words(words, tokens, room, torch.Generator().manual_seed(seed))
    flat = [token for word in drawn for token in word]
    assert len(flat) == room
    assert set(flat) == set(tokens)
    assert set(drawn) <= set(words) | {(token,) for token in tokens}


def test_pieces_without_a_root_stand_alone(tiny: Target) -> None:
    pieces = token_ids(tiny, "snorkel")[1:]
    drawn = draw_words(fuse(tiny, pieces), pieces, 2, torch.Generator().manual_seed(0))
    assert sorted(drawn) == sorted((piece,) for piece in pieces)
