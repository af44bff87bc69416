"""Prefixes of decoders with rotary positions, which repeat their first token without a trace."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import Sieve
from gradleak.attacks.sieve.plain.prefixes import _without_repeats
from gradleak.attacks.sieve.rotary_tokens import REPEATS, RotaryTokens
from gradleak.federation import Client
from wide_targets import ids_of, wider_target


def test_a_repeated_first_token_has_the_same_context_every_time() -> None:
    target = wider_target("llama")
    tokens = RotaryTokens(target, torch.tensor([7, 9]))
    contexts = tokens.contexts(torch.tensor([[0, 0, 0, 1]]))[0]
    torch.testing.assert_close(contexts[1:3], contexts[:1].expand(2, -1))
    assert (contexts[3] - contexts[0]).abs().max() > 1e-2


def test_prefixes_of_one_token_do_not_grow_for_ever() -> None:
    tokens = RotaryTokens(wider_target("llama"), torch.tensor([7, 9]))
    repeated = torch.zeros(1, REPEATS + 1, dtype=torch.long)
    assert len(tokens.distinguishable(repeated)) == 0
    assert len(tokens.distinguishable(repeated[:, 1:])) == 1
    other = repeated.clone()
    other[0, 3] = 1
    assert len(tokens.distinguishable(other)) == 1


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ([(5, 5, 5), (5, 6, 7)], [(5, 6, 7)]),
        ([(5, 5, 5)], [(5,)]),
        ([(5, 5, 5), (5, 5, 6)], [(5, 5, 6)]),
        ([(5, 5, 6), (5, 6, 7)], [(5, 6, 7)]),
        ([(5, 5, 6), (5, 7)], [(5, 7), (5, 5, 6)]),
        ([(5, 6, 6), (6, 5)], [(5, 6, 6), (6, 5)]),
    ],
)
def test_what_differs_by_repeats_of_the_first_token_alone_is_left_out(
    found: list[tuple[int, ...]], kept: list[tuple[int, ...]]
) -> None:
    assert _without_repeats(found) == kept


@pytest.mark.parametrize("texts", [["dog dog ran on"], ["the cat sat", "the dog ran"]])
def test_repeated_and_shared_beginnings_are_read(texts: list[str]) -> None:
    target = wider_target("llama")
    result = Sieve()(target, Client(target).update(texts, [1, 0][: len(texts)]))
    assert sorted(result.token_ids) == sorted(ids_of(target, texts))
    assert result.verified
