from __future__ import annotations

import pytest
import torch

from gradleak.attacks import find_attack
from gradleak.attacks.sieve.defended.batch_search import read_batch
from gradleak.attacks.sieve.defended.token_pursuit import group_words, pursue_words
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.defenses import parse_defense
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target


def test_words_with_like_gradients_are_grouped() -> None:
    generator = torch.Generator().manual_seed(0)
    owners = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    gradients = torch.randn(3, 50, generator=generator)[owners] + 0.5 * torch.randn(10, 50, generator=generator)
    gradients = gradients / gradients.norm(dim=1, keepdim=True)
    groups = group_words((gradients @ gradients.T).double(), 3)
    assert sorted(groups) == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_words_that_were_fed_are_pursued_and_others_are_not_certain() -> None:
    target = wider_target()
    inputs = first_layer_inputs(target)
    tokens = torch.tensor(ids_of(target)[2][1:-1])
    positions = torch.arange(1, len(tokens) + 1)
    basis = torch.linalg.qr(inputs(tokens, positions).T)[0]
    words = torch.arange(5, len(target.word_embeddings))
    found = pursue_words(ObservedUpdate(target, inputs, {}, words, 16), basis, words)
    assert set(found.best().tokens.tolist()) == set(tokens.tolist())
    assert len(found.tokens) > found.certain


@pytest.mark.parametrize("defense", ["sign", "prune:0.7"])
def test_a_batch_is_read_through_a_defense_and_never_verified(defense: str) -> None:
    target = wider_target()
    update = parse_defense(defense).apply(sent(target), torch.Generator().manual_seed(0))
    found = find_attack("sieve")()(target, update)
    assert not found.verified
    assert len(found.token_ids) == len(TEXTS)
    truth = [set(ids) for ids in ids_of(target)]
    shared = [max(len(words & set(ids)) / len(words | set(ids)) for ids in found.token_ids) for words in truth]
    assert sum(shared) / len(shared) > 0.5


@pytest.mark.parametrize("count", [2, 5])
def test_a_batch_size_that_is_told_is_kept(count: int) -> None:
    target = wider_target()
    update = parse_defense("sign").apply(sent(target), torch.Generator().manual_seed(0))
    found = find_attack("sieve")()(target, update, Knowledge(batch_size=count), budget=1.0)
    assert len(found.token_ids) == count


@pytest.mark.parametrize("family", ["gpt2", "distilbert", "albert"])
def test_batches_of_other_families_are_read_or_guessed(family: str) -> None:
    target = wider_target(family)
    update = parse_defense("sign").apply(sent(target), torch.Generator().manual_seed(0))
    found = find_attack("sieve")()(target, update, budget=1.5)
    assert not found.verified
    assert all(found.token_ids)


def test_more_groups_than_words_leave_some_empty() -> None:
    assert group_words(torch.eye(2, dtype=torch.float64), 3) == [[0], [1], []]


def test_every_step_is_told_so_that_a_clock_can_end_it() -> None:
    target = wider_target()
    inputs = first_layer_inputs(target)
    gradient = parse_defense("sign").apply(Client(target).update(TEXTS, LABELS), torch.Generator()).tensors
    words = torch.arange(5, len(target.word_embeddings))
    told: list[tuple[int, float]] = []
    tell = lambda sentences, distance: told.append((len(sentences), distance))  # noqa: E731
    found = read_batch(ObservedUpdate(target, inputs, gradient, words, 16, tell), 3)
    assert found is not None
    assert {count for count, _ in told} == {3}
    assert found.distance <= told[-1][1]  # that of the batch, once there is one
    assert len(told) > 6
