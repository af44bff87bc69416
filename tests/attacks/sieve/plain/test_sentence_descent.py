"""Guesses that are wrong in several words, in their order or in their length lead to the sentence."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from gradleak.attacks.sieve.hidden_states import HiddenStates
from gradleak.attacks.sieve.plain.sentence_descent import SentenceDescent
from gradleak.attacks.sieve.plain.sentence_sketch import SentenceSketch
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.exchange import Deadline
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.row_space import row_space
from wide_targets import ids_of, sent, wider_target

PLACES = 12


@cache
def descent() -> tuple[SentenceDescent, SentenceSketch, tuple[int, ...]]:
    """Return a descent over every word of a batch at every position, and the batch's longest sentence."""
    target = wider_target()
    inputs = first_layer_inputs(target)
    tokens = torch.tensor(sorted({token for ids in ids_of(target) for token in ids}))
    pairs = TokenPairs.of(target, inputs, tokens.repeat_interleave(PLACES), torch.arange(PLACES).repeat(len(tokens)))
    space = row_space([target.layers[0].feed_forward_in.weight_in(sent(target).tensors)])
    sketch = SentenceSketch(pairs, space, HiddenStates.of(target, inputs))
    before, after = target.special_tokens
    special = torch.tensor([*before, *after])
    return (
        SentenceDescent(sketch, (len(before), len(after)), special, Deadline()),
        sketch,
        max(ids_of(target), key=len),
    )


def row_of(sentence: tuple[int, ...] | list[int]) -> Tensor:
    row = descent()[0].row(sentence)
    assert row is not None
    return row


def changed(kind: str) -> list[int]:
    sentence = list(descent()[2])
    if kind == "two words":
        sentence[2], sentence[5] = sentence[7], sentence[1]
    elif kind == "exchanged":
        sentence[2], sentence[6] = sentence[6], sentence[2]
    elif kind == "a word too many":
        sentence.insert(4, sentence[4])
    elif kind == "a word missing":
        del sentence[4]
    return sentence


@pytest.mark.parametrize("kind", ["two words", "exchanged", "a word too many", "a word missing"])
def test_a_wrong_guess_leads_to_the_sentence(kind: str) -> None:
    search, sketch, sentence = descent()
    found = search.run([row_of(changed(kind))], thorough=True)[0]
    assert tuple(sketch.pairs.tokens[found.row].tolist()) == sentence
    assert found.loss < 1e-8


def test_the_better_of_two_guesses_is_followed_and_a_word_that_is_held_stays_at_first() -> None:
    search, sketch, sentence = descent()
    guesses = [row_of(changed("exchanged")), row_of([*sentence[:1], *sentence[1:-1][::-1], *sentence[-1:]])]
    best = search.run(guesses, held=[1])[0]
    assert tuple(sketch.pairs.tokens[best.row].tolist()) == sentence


def test_a_sentence_with_another_token_than_the_candidates_has_no_row() -> None:
    search, _, sentence = descent()
    assert search.row([*sentence[:-1], 10**6]) is None
    assert search.row([*sentence, *sentence]) is None


def test_changes_around_a_sentence_differ_from_it_and_the_best_come_first() -> None:
    search, sketch, _ = descent()
    rows = search.around(row_of(changed("two words")), 5)
    losses = sketch.losses(rows)
    assert (losses.diff() >= 0).all()
    assert not (rows == row_of(changed("two words"))).all(dim=1).any()
