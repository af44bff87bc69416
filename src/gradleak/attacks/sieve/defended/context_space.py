"""How much of a sentence's attention contexts lies in the signal of a layer, beside sentences that are known.

Searches compare thousands of sentences that differ in one word. A context of the first layer is Σ_j e_ij v_j / Σ_j e_ij
for each head, so another word changes one summand of numerator and denominator: `replaced` computes the attention of
the word itself and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.sieve.token_pairs import TokenPairs

OWN_PART = 0.1
"""A context with less than this fraction outside the fixed sentences' contexts is not informative."""


@dataclass(frozen=True)
class ContextSpace:
    """The signal of one layer's attention output map.

    Attributes:
        signal: directions that exceed the noise `[width, rank]`.
        left: what the fixed sentences leave of them `[width, rank]`.
        fixed: the span of the fixed sentences' contexts, orthonormal columns `[width, fixed]`.
    """

    signal: Tensor
    left: Tensor
    fixed: Tensor

    @classmethod
    def of(cls, signal: Tensor) -> ContextSpace:
        """Return the space with no sentence fixed."""
        return cls(signal, signal, signal[:, :0])

    def beside(self, contexts: Tensor) -> ContextSpace:
        """Return the space in which contexts `[contexts, width]` of fixed sentences no longer count."""
        fixed = torch.linalg.qr(contexts.T)[0]
        return replace(self, left=self.signal - fixed @ (fixed.T @ self.signal), fixed=fixed)

    def captured(self, contexts: Tensor) -> Tensor:
        """Return the mean fraction of contexts `[sentences, tokens, width]` in the signal `[sentences]`."""
        both = contexts @ torch.cat([self.left, self.fixed], dim=1)
        return self._fractions(both, contexts.square().sum(dim=-1)).mean(dim=-1)

    def replaced(self, pairs: TokenPairs, sentence: Tensor, place: int, candidates: Tensor) -> Tensor:
        """Return the mean fraction after replacing one token of a sentence in the first layer `[candidates]`.

        Args:
            pairs: tokens at positions.
            sentence: indices of pairs `[tokens]`.
            place: the position of the token.
            candidates: the pairs to put there.
        """
        heads, width = pairs.value.shape[1:]
        blocks = torch.cat([self.left, self.fixed], dim=1).view(heads, width, -1)
        bias = pairs.score_bias(len(sentence)).to(pairs.query)
        others = torch.cat([torch.arange(place), torch.arange(place + 1, len(sentence))]).to(sentence.device)
        rest = sentence[others]
        query, key, value = pairs.query[rest], pairs.key[rest], pairs.value[rest]
        new_query, new_key, new_value = pairs.query[candidates], pairs.key[candidates], pairs.value[candidates]

        scores = torch.einsum("ihd,jhd->ihj", query, key) + bias[:, others][:, :, others].transpose(0, 1)
        new = torch.einsum("ihd,chd->ihc", query, new_key) + bias[:, others, place].T[:, :, None]
        most = torch.cat([scores, new], dim=-1).amax(dim=-1, keepdim=True)
        weights, new = (scores - most).exp(), (new - most).exp()
        share = 1.0 / (weights.sum(dim=-1, keepdim=True) + new)  # [tokens, heads, candidates]
        above = torch.einsum("ihj,jhd->ihd", weights, value)
        gained = share * new
        both = torch.einsum("ihc,ihm->icm", share, torch.einsum("ihd,hdm->ihm", above, blocks))
        both = both + torch.einsum("ihc,chm->icm", gained, torch.einsum("chd,hdm->chm", new_value, blocks))
        whole = torch.einsum("ihc,ih->ic", share.square(), above.square().sum(dim=-1))
        whole = whole + 2 * (share * gained * torch.einsum("ihd,chd->ihc", above, new_value)).sum(dim=1)
        whole = whole + torch.einsum("ihc,ch->ic", gained.square(), new_value.square().sum(dim=-1))

        own = torch.einsum("chd,jhd->chj", new_query, key) + bias[:, place, others]
        itself = (new_query * new_key).sum(dim=-1, keepdim=True) + bias[:, place, place, None]
        attention = torch.cat([own, itself], dim=-1).softmax(dim=-1)
        contexts = torch.einsum("chj,jhd->chd", attention[..., :-1], value) + attention[..., -1:] * new_value
        there = self._fractions(torch.einsum("chd,hdm->cm", contexts, blocks), contexts.square().sum(dim=(1, 2)))
        return (self._fractions(both, whole).sum(dim=0) + there) / len(sentence)

    def _fractions(self, both: Tensor, whole: Tensor) -> Tensor:
        """Return the fractions of contexts in the signal, given products with `left` and `fixed`, and squared norms."""
        inside, taken = torch.split(both.square(), [self.left.shape[1], self.fixed.shape[1]], dim=-1)
        own = torch.maximum(whole - taken.sum(dim=-1), OWN_PART * whole)
        return inside.sum(dim=-1) / own.clamp(min=1e-12)
