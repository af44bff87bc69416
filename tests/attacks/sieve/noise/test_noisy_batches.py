from __future__ import annotations

import time
from collections import Counter

import pytest
import torch

from gradleak.attacks import find_attack
from gradleak.attacks.sieve.noise import batch_search, input_fit
from gradleak.attacks.sieve.noise.batch_search import likely_classes, read_batch_by_likelihood
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.defenses import parse_defense
from gradleak.exchange import Deadline, Update
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.targets import Target
from wide_targets import ids_of, wider_target

TEXTS = ["the cat sat on a mat", "big dog ran"]
LABELS = [0, 1]
DEVIATION = 1e-4


@pytest.fixture(scope="module")
def target() -> Target:
    return wider_target()


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search take seconds."""
    monkeypatch.setattr(batch_search, "SLOTS", 9)
    monkeypatch.setattr(input_fit, "TOGETHER", 100)
    monkeypatch.setattr(input_fit, "AGAIN", 20)
    monkeypatch.setattr(batch_search, "ROUNDS", 1)


def noisy(target: Target, texts: list[str] = TEXTS, labels: list[int] = LABELS) -> Update:
    update = Client(target).update(texts, labels)
    return parse_defense(f"noise:{DEVIATION}").apply(update, torch.Generator().manual_seed(0))


def observed(target: Target, update: Update, seconds: float | None = None) -> ObservedUpdate:
    words = torch.arange(5, len(target.word_embeddings))
    inputs = first_layer_inputs(target)
    return ObservedUpdate(target, inputs, update.tensors, words, 12, deadline=Deadline(seconds))


@pytest.mark.usefixtures("brief")
def test_most_words_of_a_batch_are_found_and_none_of_its_sentences_is_empty(target: Target) -> None:
    found = read_batch_by_likelihood(observed(target, noisy(target)), 2, None)
    ends = len(target.special_tokens[0]), -len(target.special_tokens[1])
    words = [sentence[ends[0] : ends[1]] for sentence in found.sentences]
    true = Counter(token for ids in ids_of(target, TEXTS) for token in ids[ends[0] : ends[1]])
    assert all(words)
    assert sorted(found.labels) == LABELS
    assert (
        true & Counter(token for sentence in words for token in sentence)
    ).total() >= 7  # of nine; about one would be by chance


@pytest.mark.usefixtures("brief")
def test_the_same_batch_is_read_the_same_way_twice(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_fit, "TOGETHER", 10)
    monkeypatch.setattr(batch_search, "IMPROVED", 60)
    first, second = (read_batch_by_likelihood(observed(target, noisy(target)), 2, None) for _ in range(2))
    assert first.sentences == second.sentences


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_deadline_is_kept_and_every_sentence_is_returned(target: Target, seconds: float) -> None:
    update = noisy(target, [*TEXTS, "a red dog", "the big mat"], [0, 1, 1, 0])
    started = time.monotonic()
    found = read_batch_by_likelihood(observed(target, update, seconds), 4, None)
    assert time.monotonic() - started < seconds + 10
    assert len(found.sentences) == len(found.labels) == 4
    assert min(map(len, found.sentences)) >= target.min_length


def test_classes_are_those_of_the_classifiers_bias(target: Target) -> None:
    update = noisy(target, [*TEXTS, "a red dog", "the big mat"], [1, 1, 0, 1])
    assert likely_classes(observed(target, update), 4) == [0, 1, 1, 1]
    bias = f"{target.classifier}.bias"
    without = Update({name: own for name, own in update.tensors.items() if name != bias})
    assert len(likely_classes(observed(target, without), 4)) == 4


def test_a_noisy_batch_is_never_verified(target: Target) -> None:
    found = find_attack("sieve")(prior="none")(target, noisy(target), budget=2.0)
    assert not found.verified
    assert not found.complete
