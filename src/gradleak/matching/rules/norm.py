"""Gradient rules of LayerNorm and RMSNorm."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

from gradleak.matching.factors import Dense, Factor
from gradleak.matching.rules.registry import LayerCall, register_grad_rule
from gradleak.targets.norms import RmsNorm


@register_grad_rule(nn.LayerNorm)
def layer_norm(layer: nn.LayerNorm, call: LayerCall) -> dict[str, Factor]:
    """Return dγ = Σ δ ⊙ normalised input and dβ = Σ δ."""
    normalised = functional.layer_norm(call.activations, layer.normalized_shape, eps=layer.eps)
    factors: dict[str, Factor] = {"weight": Dense(call.by_candidate(normalised * call.backprops).sum(dim=2))}
    if layer.bias is not None:
        factors["bias"] = Dense(call.by_candidate(call.backprops).sum(dim=2))
    return factors


@register_grad_rule(RmsNorm)
def rms_norm(layer: RmsNorm, call: LayerCall) -> dict[str, Factor]:
    """Return dγ = Σ δ ⊙ normalised input, whatever is added to γ."""
    return {"weight": Dense(call.by_candidate(layer.normalise(call.activations) * call.backprops).sum(dim=2))}
