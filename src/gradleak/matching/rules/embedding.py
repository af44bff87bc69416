"""Gradient rule of embedding tables: positions, token types, and words where a model looks them up itself."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.matching.factors import Factor, LookupRows
from gradleak.matching.rules.registry import LayerCall, register_grad_rule


@register_grad_rule(nn.Embedding)
def embedding(layer: nn.Embedding, call: LayerCall) -> dict[str, Factor]:
    """Give each looked-up row its output's gradient; the padding row gets none, as in training."""
    victims, candidates, _ = call.shape
    index = call.activations.expand(call.outputs.shape[:-1]).reshape(victims, candidates, -1)
    backprops = call.by_candidate(call.backprops)
    if layer.padding_idx is not None:
        backprops = torch.where((index == layer.padding_idx)[..., None], 0.0, backprops)
    return {"weight": LookupRows(index, backprops, layer.num_embeddings)}
