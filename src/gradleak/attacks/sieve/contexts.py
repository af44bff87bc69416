"""The test of a whole sentence: the first layer's attention must lie in the row space of the map that takes it.

The attention output map is fed one context for each token of each sentence, a mixture of values that depends on the
whole sentence and on no other. Its gradient's row space is the span of all contexts of the batch, so that a sentence
can be tested by itself: right ones leave 1e-7 of their contexts outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.targets import Projection, Target

SKETCH = 48
"""Dimensions of a random picture of what is outside the row space, which a search compares sentences by."""


@dataclass(frozen=True)
class Pairs:
    """Tokens at positions that the row space allows, and what attention makes of each.

    Attributes:
        tokens: token of each pair `[pairs]`.
        positions: position of each pair.
        query: `[pairs, heads, head width]`, scaled.
        key: the same of the keys.
        value: the same of the values.
        causal: whether a token sees only those before it.
    """

    tokens: Tensor
    positions: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool

    @classmethod
    def of(cls, target: Target, inputs: Inputs, tokens: Tensor, positions: Tensor) -> Pairs:
        """Run the first layer's three maps on the pairs."""
        layer, heads = target.layers[0], int(target.config.num_attention_heads)
        fed = inputs(tokens, positions)
        if inputs.maps != (layer.query, layer.key, layer.value):  # ALBERT: the first map is before the layer
            fed = _apply(target, inputs.maps[0], fed)
        mapped = (_apply(target, projection, fed) for projection in (layer.query, layer.key, layer.value))
        query, key, value = (each.view(len(tokens), heads, each.shape[1] // heads) for each in mapped)
        causal = "causal-lm" in target.family.tasks
        return cls(tokens, positions, query * query.shape[-1] ** -0.5, key, value, causal)

    def to(self, dtype: torch.dtype) -> Pairs:
        """Return the same in another precision."""
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype))

    def at(self, position: int) -> Tensor:
        """Return the numbers of the pairs at a position."""
        return (self.positions == position).nonzero().flatten()

    def contexts(self, sentences: Tensor) -> Tensor:
        """Return the contexts `[sentences, tokens, width]` of sentences given as numbers of pairs."""
        query, key, value = self.query[sentences], self.key[sentences], self.value[sentences]
        scores = torch.einsum("sihd,sjhd->shij", query, key)
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return torch.einsum("shij,sjhd->sihd", scores.softmax(dim=-1), value).flatten(2)


def outside_contexts(pairs: Pairs, sentences: Tensor, space: Subspace) -> Tensor:
    """Return the largest share of a context that lies outside the row space `[sentences]`."""
    return space.outside(pairs.contexts(sentences)).amax(dim=1)


class Sketch:
    """Single replacements in sentences, all of them at once.

    A context is Σ_h Σ_j e_ij v_j / Σ_j e_ij over heads h and tokens j. What of it lies outside the row space is linear
    in the values, so that replacing token j changes one summand above and one below the line: a candidate costs a few
    products of small matrices, and no attention is run.

    Args:
        pairs: the candidates.
        space: the row space of the contexts.
    """

    def __init__(self, pairs: Pairs, space: Subspace) -> None:
        heads, width = pairs.value.shape[1:]
        generator = torch.Generator().manual_seed(0)
        picture = torch.randn(space.width, SKETCH, generator=generator, dtype=torch.float64).to(space.basis)
        picture = (picture - space.basis @ (space.basis.T @ picture)) / SKETCH**0.5
        blocks = picture.view(heads, width, SKETCH)
        self.pairs = pairs
        self.query, self.key = pairs.query.float(), pairs.key.float()
        self.shown = torch.einsum("phd,hdm->phm", pairs.value, blocks).float()
        self.size = float(pairs.value.square().sum(dim=(1, 2)).mean())

    def losses(self, sentences: Tensor) -> Tensor:
        """Return the mean share of a context's square outside the row space, about `[sentences]`."""
        above, below, _ = self._fractions(sentences)
        return (above / below[..., None]).sum(dim=2).square().sum(dim=-1).mean(dim=1) / self.size

    def replacements(self, sentences: Tensor, position: int, candidates: Tensor) -> Tensor:
        """Return the losses `[sentences, candidates]` with the token at a position replaced.

        The context of the replaced token itself is left out: it would need its own attention.
        """
        above, below, weights = self._fractions(sentences)
        old = sentences[:, position]
        others = [n for n in range(sentences.shape[1]) if n != position]
        gone = weights[:, others, :, position]  # [sentences, others, heads]
        above = above[:, others] - gone[..., None] * self.shown[old][:, None]
        below = below[:, others] - gone
        new = torch.einsum("sihd,chd->sihc", self.query[sentences[:, others]], self.key[candidates]).exp()
        share = 1.0 / (below[..., None] + new)
        outside = torch.einsum("sihc,sihm->sicm", share, above)
        outside = outside + torch.einsum("sihc,chm->sicm", share * new, self.shown[candidates])
        return outside.square().sum(dim=-1).mean(dim=1) / self.size

    def _fractions(self, sentences: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return numerators `[sentences, tokens, heads, sketch]`, denominators, and the weights of single tokens."""
        weights = torch.einsum("sihd,sjhd->sihj", self.query[sentences], self.key[sentences]).exp()
        above = torch.einsum("sihj,sjhm->sihm", weights, self.shown[sentences])
        return above, weights.sum(dim=-1), weights


def _apply(target: Target, projection: Projection, fed: Tensor) -> Tensor:
    parameters = target.parameters
    weight = projection.weight_in(parameters).detach().double()
    outputs = fed @ weight.T
    return outputs + projection.bias_in(parameters).detach().double() if projection.bias in parameters else outputs
