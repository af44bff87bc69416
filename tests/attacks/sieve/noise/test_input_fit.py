from __future__ import annotations

from itertools import groupby

import pytest
import torch

from gradleak.attacks.sieve.noise import input_fit
from gradleak.attacks.sieve.noise.input_fit import InputFit
from gradleak.attacks.sieve.noise.likelihood import MatchedFilter
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.defenses import parse_defense
from gradleak.exchange import Deadline
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.matching import Matcher
from gradleak.targets import Target
from wide_targets import ids_of, wider_target

TEXT = "the big dog ran on a mat"
TEXTS = ["the cat sat on a mat", "big dog ran"]


@pytest.fixture(scope="module")
def target() -> Target:
    return wider_target()


def fit_of(
    target: Target, texts: list[str], slots: int, deadline: Deadline | None = None, *, whole: bool = False
) -> InputFit:
    labels = list(range(len(texts)))
    update = parse_defense("noise:0.0001").apply(Client(target).update(texts, labels), torch.Generator().manual_seed(0))
    words = torch.arange(5, len(target.word_embeddings))
    observed = ObservedUpdate(target, first_layer_inputs(target), update.tensors, words, 16)
    matcher = Matcher(target, [update.tensors], MatchedFilter()).until(deadline or Deadline())
    return InputFit(observed, matcher, labels, slots, all_filled=whole)


def words_of(target: Target, text: str) -> list[int]:
    (ids,) = ids_of(target, [text])
    return list(ids[len(target.special_tokens[0]) : -len(target.special_tokens[1])])


def test_words_and_their_order_are_found_in_more_slots_than_there_are_words(target: Target) -> None:
    fit = fit_of(target, [TEXT], 13)
    while not fit.finished:
        (found,) = fit.advance()
    placed = [own for own, _ in groupby(found)]  # in a model this small, vectors left over lie near those of words
    assert [token for token in placed if token in words_of(target, TEXT)] == words_of(target, TEXT)


def test_slots_are_added_where_they_do_not_suffice(target: Target) -> None:
    fit = fit_of(target, [TEXT], 6)
    fit.advance()
    assert fit._free.shape[1] > 6


def test_a_known_length_fills_all_slots(target: Target) -> None:
    true = words_of(target, TEXT)
    fit = fit_of(target, [TEXT], len(true) + 2, whole=True)
    (found,) = fit.advance()
    assert len(found) == len(true)
    assert sum(a == b for a, b in zip(found, true, strict=True)) >= 5


def test_the_words_of_several_sentences_are_told_apart(target: Target) -> None:
    found = fit_of(target, TEXTS, 9).advance()
    for words, text in zip(found, TEXTS, strict=True):
        own, other = (set(words_of(target, each)) for each in (text, *(t for t in TEXTS if t != text)))
        assert len(own & set(words)) >= 2
        assert len(own & set(words)) > len((other - own) & set(words))


def test_a_passed_deadline_ends_the_fit(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_fit, "BY_FILTER", 10**6)
    fit = fit_of(target, [TEXT], 12, Deadline(0.5))
    assert fit.advance()
    assert fit.finished


def test_a_sentence_has_a_word_even_if_none_is_clear(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_fit, "CLEAR", 2.0)
    assert [len(words) for words in fit_of(target, TEXTS, 9, Deadline(0.0)).advance()] == [1, 1]
