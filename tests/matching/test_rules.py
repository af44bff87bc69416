"""A gradient rule is added with a decorator, and used only where it equals autograd: the example of the README."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from oracle import oracle
from test_matcher import close, draw, observe
from torch import Tensor, nn

from conftest import ALL_KINDS, DECODERS, small_target
from gradleak.matching import Cosine, LayerCall, Matcher, register_grad_rule
from gradleak.matching.factors import Dense, Factor
from gradleak.matching.rules import RULES
from gradleak.targets import Target, Task
from gradleak.targets.loading import MODEL_CLASSES


class Scale(nn.Module):
    """A layer type of a custom model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, width, dtype=torch.float64))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


@pytest.fixture
def custom(bert: Target) -> Target:
    """A BERT that scales its pooled features."""
    model: Any = bert.to(dtype=torch.float64).model
    model.dropout = Scale(16)
    return Target(model, bert.tokenizer, bert.family, name="custom")


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    """Remove the rules of the test."""
    yield
    RULES.pop(Scale, None)


def assert_equals_autograd(target: Target) -> Matcher:
    observed, candidates = observe(target, victims=2), draw(target, (2, 3, 2, 6), seed=0)
    matcher = Matcher(target, observed, Cosine())
    expected = oracle(target, observed, Cosine(), candidates, matcher.parameters)
    assert close(matcher(candidates), expected, torch.float64)
    return matcher


def test_a_registered_rule_takes_its_layer_from_autograd(custom: Target) -> None:
    @register_grad_rule(Scale)
    def scale(layer: Scale, call: LayerCall) -> dict[str, Factor]:
        return {"factor": Dense(call.by_candidate(call.activations * call.backprops).sum(dim=2))}

    assert RULES[Scale] is scale
    matcher = assert_equals_autograd(custom)
    assert matcher.slow_parameters == []
    assert "dropout.factor" in matcher.parameters


def test_a_wrong_rule_is_never_used(custom: Target) -> None:
    @register_grad_rule(Scale)
    def forgets_the_activations(layer: Scale, call: LayerCall) -> dict[str, Factor]:
        return {"factor": Dense(call.by_candidate(call.backprops).sum(dim=2))}

    assert assert_equals_autograd(custom).slow_parameters == ["dropout.factor"]


def test_a_rule_covers_subclasses_of_its_layer(custom: Target) -> None:
    class Wider(nn.Linear):
        """A linear layer of another name."""

    model: Any = custom.model
    own = model.classifier
    model.classifier = Wider(own.in_features, own.out_features, dtype=torch.float64)
    target = Target(model, custom.tokenizer, custom.family, name="wider")
    assert assert_equals_autograd(target).slow_parameters == ["dropout.factor"]


@pytest.mark.parametrize(("family", "task"), ALL_KINDS, ids=["-".join(kind) for kind in ALL_KINDS])
def test_the_rules_cover_every_layer_of_every_family(family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    assert assert_equals_autograd(target).slow_parameters == []


@pytest.mark.parametrize("family", sorted(set(DECODERS) - {"gpt2", "gpt_neox"}))
def test_norms_that_no_rule_knows_are_left_to_autograd(family: str) -> None:
    own = small_target(family, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        settings = copy.deepcopy(own.config)  # with Hugging Face's own norms and attention
        model = MODEL_CLASSES["classification"].from_config(settings, attn_implementation="eager")
    model.load_state_dict(own.model.state_dict())
    target = Target(model, own.tokenizer, own.family, name="stock")
    observed, candidates = observe(target), draw(target, (1, 2, 2, 6), seed=0)
    matcher = Matcher(target, observed, Cosine())
    expected = oracle(target, observed, Cosine(), candidates, matcher.parameters)
    assert close(matcher(candidates), expected, torch.float32)
    assert matcher.slow_parameters
    assert all("norm" in name for name in matcher.slow_parameters)
