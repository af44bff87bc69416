"""Embedding tables: positions and token types, and words where a model looks them up itself."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.matching.factors import Factor, Rows
from gradleak.matching.rules.registry import Use, rule


@rule(nn.Embedding)
def embedding(layer: nn.Embedding, use: Use) -> dict[str, Factor]:
    """Each looked-up row gets its output's gradient; the padding row gets none, as in training."""
    victims, candidates, _ = use.shape
    index = use.inputs.expand(use.outputs.shape[:-1]).reshape(victims, candidates, -1)
    gradients = use.by_candidate(use.gradients)
    if layer.padding_idx is not None:
        gradients = torch.where((index == layer.padding_idx)[..., None], 0.0, gradients)
    return {"weight": Rows(index, gradients, layer.num_embeddings)}
