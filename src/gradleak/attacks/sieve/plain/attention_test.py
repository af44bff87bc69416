"""Test whole sentences: their first-layer contexts must lie in the row space of the attention output map.

That map's inputs are one context per token of each sentence, a mixture of values that depends on the whole sentence
and on no other. Its gradient's row space is the span of all contexts of the batch, so each sentence can be tested by
itself: correct ones leave 1e-7 of their contexts outside.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.row_space import Subspace

SKETCH = 48
"""Dimensions of the random projection of the row space's complement, by which a search compares sentences."""

CORRECT, MOST_OUTSIDE = 1e-4, 0.2
"""A sentence is correct if less than the first fraction of each of its contexts lies outside; wrong ones leave 1e-2.
For a rounded update the tolerance grows with the error of the row space, up to the second; subtraction has to confirm
it."""


def context_tolerance(contexts: Subspace) -> float:
    """Return the fraction of a context that a correct sentence may leave outside, given the rounding of the space."""
    return max(CORRECT, min(3 * contexts.error, MOST_OUTSIDE))


def outside_contexts(pairs: TokenPairs, sentences: Tensor, space: Subspace) -> Tensor:
    """Return the largest fraction of a context that lies outside the row space `[sentences]`."""
    return space.outside(pairs.contexts(sentences)).amax(dim=1)


class ContextSketch:
    """Evaluate all single replacements in sentences at once.

    A context is Σ_h Σ_j e_ij v_j / Σ_j e_ij over heads h and tokens j. Its part outside the row space is linear in the
    values, so replacing token j changes one summand of the numerator and one of the denominator: a candidate costs a
    few products of small matrices, and no attention is computed.

    Args:
        pairs: the candidates.
        space: the row space of the contexts.
    """

    def __init__(self, pairs: TokenPairs, space: Subspace) -> None:
        heads, width = pairs.value.shape[1:]
        generator = torch.Generator().manual_seed(0)
        projection = torch.randn(space.width, SKETCH, generator=generator, dtype=torch.float64).to(space.basis)
        projection = (projection - space.basis @ (space.basis.T @ projection)) / SKETCH**0.5
        blocks = projection.view(heads, width, SKETCH)
        self.pairs = pairs
        self.query, self.key = pairs.query.float(), pairs.key.float()
        self.relative = None if pairs.relative is None else pairs.relative.float()
        self.projected_values = torch.einsum("phd,hdm->phm", pairs.value, blocks).float()
        self.size = float(pairs.value.square().sum(dim=(1, 2)).mean())

    def losses(self, sentences: Tensor) -> Tensor:
        """Return the approximate mean fraction of a context's energy outside the row space `[sentences]`."""
        above, below, _ = self._fractions(sentences)
        return (above / below[..., None]).sum(dim=2).square().sum(dim=-1).mean(dim=1) / self.size

    def replacements(self, sentences: Tensor, candidates: Mapping[int, Tensor]) -> list[Tensor]:
        """Return the losses `[sentences, candidates]` after replacing the token at each of some positions.

        The context of the replaced token itself is left out: it would need its own attention weights.

        Args:
            sentences: indices of pairs `[sentences, tokens]`.
            candidates: the pairs to try, by position.
        """
        fractions = self._fractions(sentences)
        return [self._replaced(sentences, fractions, position, pairs) for position, pairs in candidates.items()]

    def _replaced(
        self, sentences: Tensor, fractions: tuple[Tensor, Tensor, Tensor], position: int, candidates: Tensor
    ) -> Tensor:
        above, below, weights = fractions
        old = sentences[:, position]
        others = [n for n in range(sentences.shape[1]) if n != position]
        removed = weights[:, others, :, position]  # [sentences, others, heads]
        above = above[:, others] - removed[..., None] * self.projected_values[old][:, None]
        below = below[:, others] - removed
        scores = torch.einsum("sihd,chd->sihc", self.query[sentences[:, others]], self.key[candidates])
        if self.relative is not None:
            scores = scores + self.relative[:, others, position].T[:, :, None]
        new = scores.exp()
        share = 1.0 / (below[..., None] + new)
        outside = torch.einsum("sihc,sihm->sicm", share, above)
        outside = outside + torch.einsum("sihc,chm->sicm", share * new, self.projected_values[candidates])
        return outside.square().sum(dim=-1).mean(dim=1) / self.size

    def exchanges(self, sentence: Tensor, one: Tensor, other: Tensor, swapped: Tensor) -> Tensor:
        """Return the losses `[exchanges]` of a sentence after exchanging two of its tokens.

        The contexts of the exchanged tokens themselves are left out.

        Args:
            sentence: indices of pairs `[tokens]`.
            one: the first position of each exchange.
            other: the second position of each exchange.
            swapped: the pair of the token of one position at another `[tokens, positions]`; −1 if it is none.
        """
        (above,), (below,), (weights,) = self._fractions(sentence[None])
        new = swapped.clamp(min=0)
        scores = torch.einsum("ihd,tphd->itph", self.query[sentence], self.key[new])
        if self.relative is not None:
            length = len(sentence)
            scores = scores + self.relative[:, :length, :length].permute(1, 2, 0)[:, None]
        moved = scores.exp()  # the weight that token i gives to token t at position p, by head
        weights = weights.movedim(-1, 1)  # [tokens, positions, heads]
        total = below[:, None] - weights[:, one] - weights[:, other] + moved[:, one, other] + moved[:, other, one]
        share = 1.0 / total  # [tokens, exchanges, heads]
        values, changed = self.projected_values[sentence], self.projected_values[new]
        outside = torch.einsum("ieh,ihm->iem", share, above)
        for place, partner in ((one, other), (other, one)):
            outside = outside - torch.einsum("ieh,ehm->iem", share * weights[:, place], values[place])
            gained = share * moved[:, partner, place]
            outside = outside + torch.einsum("ieh,ehm->iem", gained, changed[partner, place])
        each = outside.square().sum(dim=-1)  # [tokens, exchanges]
        number = torch.arange(len(one), device=one.device)
        each[one, number] = each[other, number] = 0.0
        return each.sum(dim=0) / max(1, len(sentence) - 2) / self.size

    def _fractions(self, sentences: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return numerators `[sentences, tokens, heads, sketch]`, denominators, and the weights of single tokens."""
        scores = torch.einsum("sihd,sjhd->sihj", self.query[sentences], self.key[sentences])
        if self.relative is not None:
            length = sentences.shape[1]
            scores = scores + self.relative[:, :length, :length].transpose(0, 1)
        weights = scores.exp()
        above = torch.einsum("sihj,sjhm->sihm", weights, self.projected_values[sentences])
        return above, weights.sum(dim=-1), weights
