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

MOST_KEPT = 2**15
"""How many pairs a table keeps from one call to the next."""


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

    def where(self, kept: Tensor) -> TokenPairs:
        """Return some of the pairs, given by a mask or by indices."""
        return TokenPairs(
            self.tokens[kept],
            self.positions[kept],
            self.query[kept],
            self.key[kept],
            self.value[kept],
            self.causal,
            self.relative,
        )

    def followed_by(self, other: TokenPairs) -> TokenPairs:
        """Return these pairs and then others, of the same model."""
        relative = self.relative
        if other.relative is not None and (relative is None or relative.shape[1] < other.relative.shape[1]):
            relative = other.relative
        return TokenPairs(
            torch.cat([self.tokens, other.tokens]),
            torch.cat([self.positions, other.positions]),
            torch.cat([self.query, other.query]),
            torch.cat([self.key, other.key]),
            torch.cat([self.value, other.value]),
            self.causal,
            relative,
        )

    def at(self, position: int) -> Tensor:
        """Return the indices of the pairs at a position."""
        return (self.positions == position).nonzero().flatten()

    def contexts(self, sentences: Tensor) -> Tensor:
        """Return the attention contexts `[sentences, tokens, width]` of sentences given as indices of pairs."""
        query, key, value = self.query[sentences], self.key[sentences], self.value[sentences]
        scores = torch.einsum("sihd,sjhd->shij", query, key)
        scores = scores + self.score_bias(scores.shape[-1]).to(scores)
        return torch.einsum("shij,sjhd->sihd", scores.softmax(dim=-1), value).flatten(2)

    def score_bias(self, length: int) -> Tensor:
        """Return what is added to the scores of a sentence `[heads or 1, tokens, tokens]`: −∞ for what is not seen."""
        bias = torch.zeros(1, length, length, dtype=torch.float64, device=self.tokens.device)
        if self.relative is not None:
            bias = bias + self.relative[:, :length, :length]
        return bias.masked_fill(torch.ones_like(bias[0], dtype=torch.bool).triu(1), -torch.inf) if self.causal else bias


class PairTable:
    """Pairs that were asked for before, so that a search runs the first layer's maps once for each.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
    """

    def __init__(self, target: Target, inputs: LayerInputs) -> None:
        self._target, self._inputs = target, inputs
        self._clear()

    def trim(self) -> None:
        """Forget all pairs if there are too many; indices are no longer valid then."""
        if len(self._keys) > MOST_KEPT:
            self._clear()

    def _clear(self) -> None:
        none = torch.empty(0, dtype=torch.long, device=self._target.device)
        self._keys, self._rows = none, none  # keys in ascending order, and the row of each
        self.pairs = self._made(none)

    def rows(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the indices of pairs in `pairs`, in the shape of the tokens."""
        keys = tokens * len(self._inputs.positions) + positions
        missing = torch.unique(keys[~torch.isin(keys, self._keys)])
        if len(missing):
            self._add(missing)
        return self._rows[torch.searchsorted(self._keys, keys)]

    def _add(self, keys: Tensor) -> None:
        first = len(self._rows)
        self.pairs = self.pairs.followed_by(self._made(keys))
        rows = torch.cat([self._rows, torch.arange(first, first + len(keys), device=keys.device)])
        self._keys, order = torch.cat([self._keys, keys]).sort()
        self._rows = rows[order]

    def _made(self, keys: Tensor) -> TokenPairs:
        places = len(self._inputs.positions)
        return TokenPairs.of(self._target, self._inputs, keys // places, keys % places).to(self._target.dtype)


def _apply(target: Target, projection: Projection, rows: Tensor) -> Tensor:
    parameters = target.parameters
    weight = projection.weight_in(parameters).detach().double()
    outputs = rows @ weight.T
    return outputs + projection.bias_in(parameters).detach().double() if projection.bias in parameters else outputs
