"""Words that occur once are placed and grouped in closed form."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.plain.candidate_pairs import possible_pairs
from gradleak.attacks.sieve.plain.coefficients import Coefficients, word_sizes
from gradleak.attacks.sieve.plain.layout import lay_out
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.tokens import possible_words
from gradleak.targets import Target
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target

SENDS = pytest.mark.parametrize("send", ["fp32", "bf16"])


def observed_pairs(target: Target, send: str, texts: list[str] = TEXTS) -> tuple[ObservedUpdate, TokenPairs, Remainder]:
    update = sent(target, texts, LABELS[: len(texts)], send=send)
    gradient = update.gradient()
    words = possible_words(target, gradient)
    inputs = first_layer_inputs(target)
    observed = ObservedUpdate(target, inputs, gradient, words, target.max_length, protocol=update.protocol)
    remainder = Remainder.of(observed)
    special = torch.tensor([*sum(target.special_tokens, ())])
    every = torch.cat([words, special]).unique()
    tokens, positions = possible_pairs(inputs, remainder.row_space(inputs.maps), every, target.max_length)
    return observed, TokenPairs.of(target, inputs, tokens, positions), remainder


@SENDS
def test_the_words_of_the_texts_and_no_others_lie_in_the_row_space(send: str) -> None:
    target = wider_target()
    _, pairs, _ = observed_pairs(target, send)
    assert set(pairs.tokens.tolist()) == {token for ids in ids_of(target) for token in ids}


@SENDS
def test_a_word_that_occurs_once_has_its_whole_share_at_its_position(send: str) -> None:
    target = wider_target()
    observed, pairs, remainder = observed_pairs(target, send)
    coefficients = Coefficients.of(observed, pairs, remainder.gradients)
    shares = coefficients.shares(coefficients.places)
    (cat,) = [ids.index(token) for ids in ids_of(target)[:1] for token in target.encode(["cat"]).ids[0, 1:2].tolist()]
    number = coefficients.tokens.tolist().index(ids_of(target)[0][cat])
    assert int(shares[number].argmax()) == cat
    assert float(shares[number, cat]) > 0.8


@SENDS
def test_a_layout_holds_most_of_a_sentence(send: str) -> None:
    target = wider_target()
    observed, pairs, remainder = observed_pairs(target, send)
    longest = max(ids_of(target), key=len)
    layouts = lay_out(observed, pairs, remainder.gradients)
    rows = [pairs.tokens[row].tolist() for layout in layouts for row in layout.rows]
    assert max(sum(a == b for a, b in zip(row, longest, strict=False)) for row in rows) >= len(longest) // 2


def test_a_word_may_fill_most_of_a_sentence() -> None:
    target = wider_target()
    texts = ["cat" + 10 * " dog"]
    observed, pairs, remainder = observed_pairs(target, "fp32", texts)
    rows = [row for layout in lay_out(observed, pairs, remainder.gradients) for row in layout.rows]
    assert ids_of(target, texts) == [tuple(pairs.tokens[row].tolist()) for row in rows if len(row) == 13]


@pytest.mark.parametrize("part", [0, 1])
def test_nothing_is_laid_out_without_the_tokens_that_frame_a_text(part: int) -> None:
    target = wider_target()
    observed, pairs, remainder = observed_pairs(target, "fp32")
    left = pairs.where(pairs.tokens != target.special_tokens[part][0])
    assert not lay_out(observed, left, remainder.gradients)


def test_subtracted_words_have_no_size_left() -> None:
    target = wider_target()
    observed, pairs, remainder = observed_pairs(target, "fp32")
    before = word_sizes(observed, pairs, remainder.gradients)
    read = ids_of(target)[0]
    assert remainder.subtract(target, read) is not None
    after = word_sizes(observed, pairs, remainder.gradients)
    others = {token for ids in ids_of(target)[1:] for token in ids}
    gone = torch.tensor([token in read and token not in others for token in pairs.tokens.tolist()])
    stays = torch.tensor([token not in read for token in pairs.tokens.tolist()])
    assert gone.any()
    assert stays.any()
    assert (after[gone] < 0.1 * before[gone]).all()
    assert (after[stays] > 0.5 * before[stays]).all()
