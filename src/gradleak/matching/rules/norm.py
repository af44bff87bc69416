"""LayerNorm."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from gradleak.matching.factors import Dense, Factor
from gradleak.matching.rules.registry import Use, rule


@rule(nn.LayerNorm)
def layer_norm(layer: nn.LayerNorm, use: Use) -> dict[str, Factor]:
    """dγ = Σ δ ⊙ normalised input, dβ = Σ δ."""
    normalised = functional.layer_norm(use.inputs, layer.normalized_shape, eps=layer.eps)
    factors: dict[str, Factor] = {"weight": Dense(use.by_candidate(normalised * use.gradients).sum(dim=2))}
    if layer.bias is not None:
        factors["bias"] = Dense(use.by_candidate(use.gradients).sum(dim=2))
    return factors
