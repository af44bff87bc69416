"""A gradient rule is added with a decorator, and used only where it equals autograd: the example of the README."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from oracle import oracle
from test_matcher import close, draw, observe
from torch import Tensor, nn

from gradleak.matching import Cosine, LayerCall, Matcher, register_grad_rule
from gradleak.matching.factors import Dense, Factor
from gradleak.matching.rules import RULES
from gradleak.targets import Target


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
    observed, candidates = observe(target, victims=2), draw(target, (2, 3, 2, 5), seed=0)
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
