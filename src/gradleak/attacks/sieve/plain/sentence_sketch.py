"""Compare sentences, and all changes of single words in them, by what lies outside a row space.

A sentence's vectors are linear in its tokens' values, mixed by attention: its contexts, or, where the model has them in
that form, its hidden states (`hidden_states.py`), to which each token adds something of its own. A few random
combinations of what lies outside the row space tell right sentences from others, and another word changes one summand
of each: thousands of changes cost a few products of small matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.hidden_states import HiddenStates
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.row_space import Subspace

SKETCH = 64
"""Dimensions of the random projection of the row space's complement."""

AT_ONCE = 32
"""How many sentences are compared at a time: their attention stays in the processor's cache."""

MOST_SCORE = 60.0
"""Attention scores that exceed those of a sentence by more than this count as this."""


class SentenceSketch:
    """What sentences leave outside a row space.

    Args:
        pairs: the pairs of a token and a position of which sentences consist.
        space: the row space of the hidden states, or of the contexts.
        hidden: the hidden states; None for contexts.
    """

    def __init__(self, pairs: TokenPairs, space: Subspace, hidden: HiddenStates | None) -> None:
        basis, own = space.basis, None
        if hidden is not None:
            basis = torch.linalg.qr(torch.cat([basis, hidden.shift[:, None]], dim=1))[0]
            own = hidden.own(pairs.tokens, pairs.positions)
        generator = torch.Generator().manual_seed(0)
        projection = torch.randn(space.width, SKETCH, generator=generator, dtype=torch.float64).to(basis)
        projection = (projection - basis @ (basis.T @ projection)) / SKETCH**0.5
        heads, width = pairs.value.shape[1:]
        mixing = projection if hidden is None else hidden.mixing @ projection
        self.pairs = pairs
        self.query, self.key = pairs.query.float(), pairs.key.float()
        self.relative = None if pairs.relative is None else pairs.relative.float()
        self.values = torch.einsum("phd,hdm->phm", pairs.value, mixing.view(heads, width, SKETCH)).float()
        self.own = self.values.new_zeros(len(self.values), SKETCH) if own is None else (own @ projection).float()
        self.size = float((pairs.value.flatten(1) if own is None else own).square().sum(dim=1).mean())

    def losses(self, sentences: Tensor) -> Tensor:
        """Return the approximate mean fraction of a vector's energy outside the row space `[sentences]`."""
        parts = torch.split(sentences, AT_ONCE)
        return torch.cat([self._outside(part).square().sum(dim=-1).mean(dim=1) for part in parts]) / self.size

    def _outside(self, sentences: Tensor) -> Tensor:
        """Return what lies outside `[sentences, tokens, sketch]`."""
        weights = self.scores(sentences).softmax(dim=-1)
        mixed = weights.flatten(2) @ self.values[sentences].transpose(1, 2).flatten(1, 2)  # heads, then tokens
        return mixed + self.own[sentences]

    def scores(self, sentences: Tensor) -> Tensor:
        """Return attention scores `[sentences, tokens, heads, tokens]`."""
        query, key = self.query[sentences].transpose(1, 2), self.key[sentences].permute(0, 2, 3, 1)
        scores = query @ key  # [sentences, heads, tokens, tokens]
        if self.relative is not None:
            length = sentences.shape[1]
            scores = scores + self.relative[:, :length, :length]
        return scores.transpose(1, 2)

    def view(self, sentence: Tensor) -> SentenceView:
        """Return a sentence with its attention, to be changed word by word."""
        scores = self.scores(sentence[None])[0]
        most = scores.amax(dim=-1, keepdim=True)
        weights = (scores - most).exp()
        above = (weights.transpose(0, 1) @ self.values[sentence].transpose(0, 1)).transpose(0, 1)
        below = weights.sum(dim=-1)
        outside = (above / below[..., None]).sum(dim=1) + self.own[sentence]
        return SentenceView(self, sentence, most[..., 0], weights, above, below, outside)


@dataclass(frozen=True)
class SentenceView:
    """One sentence.

    Attributes:
        sketch: that of all pairs.
        sentence: indices of pairs `[tokens]`.
        most: the largest score of each token, by head `[tokens, heads]`.
        weights: attention weights relative to the largest `[tokens, heads, tokens]`.
        above: values mixed with these weights, outside the row space `[tokens, heads, sketch]`.
        below: sums of the weights `[tokens, heads]`.
        outside: what each token's vector leaves outside `[tokens, sketch]`.
    """

    sketch: SentenceSketch
    sentence: Tensor
    most: Tensor
    weights: Tensor
    above: Tensor
    below: Tensor
    outside: Tensor

    @property
    def loss(self) -> float:
        """The approximate mean fraction of a vector's energy outside the row space."""
        return self.fraction(self.outside)

    def fraction(self, outside: Tensor) -> float:
        """Return the mean fraction of a vector's energy, of vectors of which some part lies outside."""
        return float(outside.square().sum(dim=-1).mean()) / self.sketch.size

    def alone(self, pairs: Tensor, places: Tensor) -> Tensor:
        """Return what pairs in the place of tokens leave outside at their own positions `[pairs, sketch]`."""
        sketch, sentence = self.sketch, self.sentence
        values, number = sketch.values[sentence], torch.arange(len(pairs), device=pairs.device)
        query = sketch.query[pairs]
        scores = (query.transpose(0, 1) @ sketch.key[sentence].permute(1, 2, 0)).transpose(0, 1)
        scores[number, :, places] = (query * sketch.key[pairs]).sum(dim=-1)
        if sketch.relative is not None:
            scores = scores + sketch.relative[:, places, : len(sentence)].transpose(0, 1)
        weights = scores.softmax(dim=-1)  # [pairs, heads, tokens]
        mixed = weights.flatten(1) @ values.transpose(0, 1).flatten(0, 1)
        changed = weights[number, :, places][:, None] @ (sketch.values[pairs] - values[places])
        return mixed + changed[:, 0] + sketch.own[pairs]

    def changed(self, pairs: Tensor, places: Tensor, alone: Tensor) -> Tensor:
        """Return what the sentence leaves outside with a pair in the place of a token `[pairs, tokens, sketch]`.

        Args:
            pairs: the pairs.
            places: the position of each.
            alone: what each leaves outside at its own position.
        """
        sketch, sentence = self.sketch, self.sentence
        scores = torch.einsum("ihd,chd->chi", sketch.query[sentence], sketch.key[pairs])
        if sketch.relative is not None:
            scores = scores + sketch.relative[:, : len(sentence), :][:, :, places].permute(2, 0, 1)
        new = (scores - self.most.T).clamp(max=MOST_SCORE).exp()
        old = self.weights.permute(2, 1, 0)[places]  # [pairs, heads, tokens]
        share = 1.0 / (self.below.T - old + new)
        parts = torch.cat([sketch.values[pairs], -sketch.values[sentence[places]]], dim=1)
        outside = torch.cat([share * new, share * old], dim=1).mT @ parts
        outside += (share.permute(2, 0, 1) @ self.above).transpose(0, 1)
        outside += sketch.own[sentence]
        outside[torch.arange(len(pairs), device=pairs.device), places] = alone
        return outside
