"""Gradient rules of linear layers, and of GPT-2's Conv1D, a linear layer that stores its weight transposed."""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from gradleak.matching.factors import Dense, Factor, LowRank
from gradleak.matching.rules.registry import LayerCall, register_grad_rule


@register_grad_rule(nn.Linear)
def linear(layer: nn.Linear, call: LayerCall) -> dict[str, Factor]:
    """Return dW = Σ δ ⊗ a and db = Σ δ."""
    activations, backprops = call.by_candidate(call.activations), call.by_candidate(call.backprops)
    factors: dict[str, Factor] = {"weight": LowRank(backprops, activations)}
    if layer.bias is not None:
        factors["bias"] = Dense(backprops.sum(dim=2))
    return factors


@register_grad_rule(Conv1D)
def conv1d(layer: Conv1D, call: LayerCall) -> dict[str, Factor]:
    """Return dW = Σ a ⊗ δ and db = Σ δ."""
    activations, backprops = call.by_candidate(call.activations), call.by_candidate(call.backprops)
    return {"weight": LowRank(activations, backprops), "bias": Dense(backprops.sum(dim=2))}
