"""Gradients made in batches are those that clients send."""

from __future__ import annotations

import pytest
import torch
from small_inverters import pseudo

from conftest import small_target
from gradleak.federation import Client
from gradleak.inversion import GradientSource, Shape, cut_texts
from gradleak.inversion.streams import AuxiliaryText
from gradleak.matching import Candidates, autograd_gradients, candidate_gradients
from gradleak.targets import Target

TEXTS = ["the cat sat on a", "big dog ran .", "a red mat , the", "dog sat on the mat"]


@pytest.mark.parametrize("embeddings", ["frozen", "words-frozen", "trained"])
def test_gradients_of_many_batches_at_once_are_the_clients(any_target: Target, embeddings: str) -> None:
    client = Client(any_target, embeddings=embeddings)  # type: ignore[arg-type]
    encoded = any_target.encode(TEXTS)
    ids, mask = (part.view(1, 2, 2, -1) for part in (encoded.ids, encoded.mask))
    classification = any_target.task == "classification"
    labels = torch.tensor([[[0, 1], [1, 1]]]) if classification else ids
    found = candidate_gradients(any_target, Candidates(ids, mask, labels), client.sent_parameters)
    assert list(found) == client.sent_parameters
    for number in range(2):
        chosen = labels[0, number].tolist() if classification else None
        expected = client.update(TEXTS[2 * number : 2 * number + 2], chosen).tensors
        for name, tensor in expected.items():
            assert torch.allclose(found[name][0, number], tensor, rtol=1e-4, atol=1e-6), name


def test_parameters_without_a_rule_are_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert")
    names = Client(target).sent_parameters
    monkeypatch.setattr("gradleak.matching.per_candidate._trusted_without_dropout", lambda _: frozenset(names[::2]))
    ids = torch.randint(5, 20, (1, 3, 1, 5))
    candidates = Candidates(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(1, 3, 1, dtype=torch.long))
    found = candidate_gradients(target, candidates, names)
    expected = autograd_gradients(target, candidates, names)
    assert list(found) == names
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in names)


def test_a_chunk_is_the_same_each_time_and_the_target_stays_as_it_was() -> None:
    target = small_target("bert")
    state = torch.get_rng_state()
    source = GradientSource(target, pseudo(target), Client(target).sent_parameters, sequences=2, dropout=True)
    first, again, other = (source.make(number, 3) for number in (4, 4, 5))
    assert first.ids.shape == (3, 2, 6)
    assert len(first) == 3
    assert torch.equal(first.ids, again.ids)
    assert all(torch.equal(first.gradients[name], again.gradients[name]) for name in source.names)
    assert not torch.equal(first.ids, other.ids)
    assert torch.equal(torch.get_rng_state(), state)
    assert not target.model.training


def test_dropout_changes_the_gradients_and_each_example_has_its_own() -> None:
    target = small_target("bert")
    tokens = cut_texts(target, ["the cat sat on"] * 4, Shape(6, 5))
    stream = AuxiliaryText(tokens)
    names = [f"{target.layers[0].query.module}.weight"]
    plain, dropped = (
        GradientSource(target, stream, names, dropout=d).make(0, 2).gradients[names[0]] for d in (False, True)
    )
    assert not torch.allclose(plain, dropped)
    assert not torch.allclose(dropped[0], dropped[1])
