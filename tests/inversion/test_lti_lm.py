"""The paper's language model, by name."""

from __future__ import annotations

import pytest
import torch

from gradleak.federation import Client
from gradleak.inversion import AuxiliaryText, GradientSource, Shape, cut_texts
from gradleak.targets import Target, load_target


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("lti-lm", task="causal-lm")


def test_it_is_the_papers_model_and_needs_no_checkpoint(target: Target) -> None:
    sent = Client(target, embeddings="words-frozen").sent_parameters
    assert len(target.layers) == 3
    assert sum(target.parameters[name].numel() for name in sent) == 1_101_024
    assert len(target.word_embeddings) == 30_522
    assert target.special_tokens == ((), ())


def test_its_weights_come_from_the_seed(target: Target) -> None:
    assert load_target("lti-lm", task="causal-lm").fingerprint == target.fingerprint
    assert load_target("lti-lm", seed=1, task="causal-lm").fingerprint != target.fingerprint


def test_its_gradients_are_made_in_batches_as_its_clients_make_them(target: Target) -> None:
    client = Client(target, embeddings="words-frozen")
    text = "the quick brown fox jumps over the lazy dog and runs into the dark forest ."
    tokens = cut_texts(target, [text] * 2, Shape(16, 16))
    chunk = GradientSource(target, AuxiliaryText(tokens), client.sent_parameters).make(0, 2)
    assert chunk.ids[0, 0].tolist() == target.encode([text]).ids[0].tolist()
    expected = client.update([text]).tensors
    for name, tensor in expected.items():
        assert torch.allclose(chunk.gradients[name][0], tensor, rtol=1e-3, atol=1e-6), name
    positions = chunk.gradients["transformer.wpe.weight"]
    assert positions[:, :15].abs().amax(dim=2).bool().all()
    assert not positions[:, 15:].any()
