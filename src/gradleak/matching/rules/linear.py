"""Linear layers, and GPT-2's Conv1D, which is a linear layer that stores its weight transposed."""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from gradleak.matching.factors import Dense, Factor, LowRank
from gradleak.matching.rules.registry import Use, rule


@rule(nn.Linear)
def linear(layer: nn.Linear, use: Use) -> dict[str, Factor]:
    """Gradients are dW = Σ δ ⊗ a and db = Σ δ."""
    inputs, gradients = use.by_candidate(use.inputs), use.by_candidate(use.gradients)
    factors: dict[str, Factor] = {"weight": LowRank(gradients, inputs)}
    if layer.bias is not None:
        factors["bias"] = Dense(gradients.sum(dim=2))
    return factors


@rule(Conv1D)
def conv1d(layer: Conv1D, use: Use) -> dict[str, Factor]:
    """Gradients are dW = Σ a ⊗ δ and db = Σ δ."""
    inputs, gradients = use.by_candidate(use.inputs), use.by_candidate(use.gradients)
    return {"weight": LowRank(inputs, gradients), "bias": Dense(gradients.sum(dim=2))}
