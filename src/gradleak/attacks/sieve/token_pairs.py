"""Queries, keys and values of (token, position) pairs in the first layer, and the attention contexts of sentences.

A sentence without dropout is a list of pairs, so the first layer's maps run once per pair and not once per sentence.
Used by the reader without dropout and by the context score of defended updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.targets import Projection, Target


@dataclass(frozen=True)
class TokenPairs:
    """Pairs of a token and a position, with their queries, keys and values in the first layer.

    Attributes:
        tokens: token of each pair `[pairs]`.
        positions: position of each pair `[pairs]`.
        query: scaled queries `[pairs, heads, head width]`.
        key: keys `[pairs, heads, head width]`.
        value: values `[pairs, heads, head width]`.
        causal: whether a token attends only to itself and earlier ones.
        relative: what relative positions add to the scores `[heads, positions, positions]` (MPNet); None if nothing.
    """

    tokens: Tensor
    positions: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    relative: Tensor | None = None

    @classmethod
    def of(cls, target: Target, inputs: LayerInputs, tokens: Tensor, positions: Tensor) -> TokenPairs:
        """Run the first layer's three maps on pairs."""
        layer, heads = target.layers[0], int(target.config.num_attention_heads)
        rows = inputs(tokens, positions)
        if inputs.maps != (layer.query, layer.key, layer.value):  # ALBERT: the first map precedes the layer
            rows = _apply(target, inputs.maps[0], rows)
        mapped = (_apply(target, projection, rows) for projection in (layer.query, layer.key, layer.value))
        query, key, value = (each.view(len(tokens), heads, each.shape[1] // heads) for each in mapped)
        causal = "causal-lm" in target.family.tasks
        relative = target.family.relative_scores(target.model, int(positions.max()) + 1 if len(positions) else 1)
        relative = None if relative is None else relative.detach().double()
        return cls(tokens, positions, query * query.shape[-1] ** -0.5, key, value, causal, relative)

    def to(self, dtype: torch.dtype) -> TokenPairs:
        """Return the pairs with queries, keys and values in another precision."""
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype))

    def at(self, position: int) -> Tensor:
        """Return the indices of the pairs at a position."""
        return (self.positions == position).nonzero().flatten()

    def contexts(self, sentences: Tensor) -> Tensor:
        """Return the attention contexts `[sentences, tokens, width]` of sentences given as indices of pairs."""
        query, key, value = self.query[sentences], self.key[sentences], self.value[sentences]
        scores = torch.einsum("sihd,sjhd->shij", query, key)
        if self.relative is not None:
            scores = scores + self.relative[:, : scores.shape[2], : scores.shape[3]].to(scores)
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return torch.einsum("shij,sjhd->sihd", scores.softmax(dim=-1), value).flatten(2)


def _apply(target: Target, projection: Projection, rows: Tensor) -> Tensor:
    parameters = target.parameters
    weight = projection.weight_in(parameters).detach().double()
    outputs = rows @ weight.T
    return outputs + projection.bias_in(parameters).detach().double() if projection.bias in parameters else outputs
