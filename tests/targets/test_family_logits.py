from __future__ import annotations

from typing import Any

import pytest
import torch
from eager_twin import PADDED_TEXTS, eager_twin, own_logits
from torch.testing import assert_close

from conftest import ALL_KINDS, DECODERS, FAMILY_NAMES, SMALL_WITHOUT_ATTENTION, small_target
from gradleak.targets import Target, Task, cross_entropy

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"hidden_act": "relu", "type_vocab_size": 1}),
    ("distilbert", {"sinusoidal_pos_embds": True}),
    ("albert", {"num_hidden_groups": 3, "inner_group_num": 2}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"scale_attn_weights": False, "n_inner": 20}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 6, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4, "hidden_act": "gelu", "rms_norm_eps": 0.1}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 1}),
    ("qwen2", {"use_sliding_window": False}),
    ("gemma2", {"attn_logit_softcapping": None, "num_key_value_heads": 4, "sliding_window": 1}),
    ("gemma3_text", {"layer_types": ["full_attention"] * 2}),
    ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0}),
    ("mpnet", {"hidden_act": "relu"}),
    ("qwen3", {"attention_bias": True, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
]


def assert_agrees_with_its_twin(target: Target) -> None:
    # Hugging Face's rotary models compute norms and softmax in float32, and masks overflow there if they are float64's
    target.to(dtype=torch.float32 if target.family.rotary else torch.float64)
    tokens = target.encode(PADDED_TEXTS)
    assert not tokens.mask.all(), "the test is about padding"
    with torch.no_grad():
        expected = eager_twin(target)(input_ids=tokens.ids, attention_mask=tokens.mask.long()).logits
        found = own_logits(target, tokens)
    if target.task == "causal-lm":  # nobody reads what is predicted after padding
        expected, found = expected[tokens.mask], found[tokens.mask]
    tolerance = 1e-5 if target.family.rotary else 1e-9
    assert_close(found, expected, rtol=tolerance, atol=tolerance / 10)


def test_logits_equal_those_of_hugging_faces_eager_model_with_padding(every_target: Target) -> None:
    assert_agrees_with_its_twin(every_target)


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=[f"{f}-{'-'.join(c)}" for f, c in VARIANTS])
def test_logits_follow_the_configuration(family: str, changes: dict[str, Any]) -> None:
    assert_agrees_with_its_twin(small_target(family, **changes))


def test_padding_does_not_change_a_texts_logits(every_target: Target) -> None:
    every_target.to(dtype=torch.float64)
    together = every_target.encode(PADDED_TEXTS)
    with torch.no_grad():
        rows = own_logits(every_target, together)
        for row, length, text in zip(rows, together.lengths, PADDED_TEXTS, strict=True):
            alone = own_logits(every_target, every_target.encode([text]))[0]
            assert_close(row[:length] if every_target.task == "causal-lm" else row, alone)


@pytest.mark.parametrize(
    ("family", "task"), [*ALL_KINDS, *((family, "classification") for family in SMALL_WITHOUT_ATTENTION)]
)
def test_the_loss_has_second_derivatives_that_are_right(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    tokens = target.encode(["cat sat on", "dog ran"])
    labels = tokens.ids if task == "causal-lm" else torch.tensor([0, 1])

    def loss(embeddings: torch.Tensor) -> torch.Tensor:
        return target.sequence_losses(embeddings, tokens.mask, labels).sum()

    embeddings = target.embed(tokens.ids).requires_grad_()
    assert torch.autograd.gradgradcheck(loss, embeddings, fast_mode=True)
    (slope,) = torch.autograd.grad(loss(embeddings), embeddings, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.square().sum(), embeddings)
    assert curvature.abs().max() > 0


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_classifiers_loss_is_cross_entropy_and_takes_distributions(family: str) -> None:
    target = small_target(family, num_labels=3, dtype=torch.float64)
    tokens = target.encode(PADDED_TEXTS)
    labels = torch.tensor([2, 0, 1])
    with torch.no_grad():
        embeddings = target.embed(tokens.ids)
        losses = target.sequence_losses(embeddings, tokens.mask, labels)
        soft = target.sequence_losses(embeddings, tokens.mask, torch.eye(3, dtype=torch.float64)[labels])
        expected = torch.nn.functional.cross_entropy(own_logits(target, tokens), labels, reduction="none")
    assert_close(losses, expected)
    assert_close(soft, expected)


@pytest.mark.parametrize("family", DECODERS)
def test_a_language_models_loss_is_that_of_hugging_face_for_each_text(family: str) -> None:
    target = small_target(family, "causal-lm", dtype=torch.float64)
    texts = PADDED_TEXTS[:2]
    tokens = target.encode(texts)
    twin = eager_twin(target)
    with torch.no_grad():
        losses = target.sequence_losses(target.embed(tokens.ids), tokens.mask, tokens.ids)
        for loss, text in zip(losses, texts, strict=True):
            ids = target.encode([text]).ids
            expected = twin(input_ids=ids, labels=ids).loss.double()  # Hugging Face computes it in float32
            assert_close(loss, expected, rtol=1e-6, atol=0)
        distributions = torch.nn.functional.one_hot(tokens.ids, target.num_labels).double()
        assert_close(target.sequence_losses(target.embed(tokens.ids), tokens.mask, distributions), losses)


def test_cross_entropy_of_classes_equals_that_of_their_one_hot_rows() -> None:
    logits = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20).view(4, 5) % 7
    assert_close(cross_entropy(logits, labels), cross_entropy(logits, torch.eye(7)[labels]))


def test_other_parameters_can_be_given_for_the_loss_and_the_targets_own_stay(every_target: Target) -> None:
    tokens = every_target.encode(PADDED_TEXTS[:2])
    labels = tokens.ids if every_target.task == "causal-lm" else torch.tensor([0, 1])
    before = {name: parameter.clone() for name, parameter in every_target.parameters.items()}
    other = small_target(every_target.family.name, every_target.task, seed=1)
    with torch.no_grad():
        given = every_target.loss_with(other.parameters, tokens.ids, tokens.mask, labels)
        expected = other.loss_with({}, tokens.ids, tokens.mask, labels)
        own = every_target.loss_with({}, tokens.ids, tokens.mask, labels)
        words = every_target.loss_with({}, every_target.embed(tokens.ids), tokens.mask, labels)
    assert_close(given, expected)
    assert_close(own, words)
    assert abs(own - given) > 1e-3
    assert all(torch.equal(before[name], parameter) for name, parameter in every_target.parameters.items())
