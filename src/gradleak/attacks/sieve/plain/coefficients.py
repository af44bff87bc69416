"""The first layer's gradients in terms of words and positions: closed-form estimates of where each word stands.

Up to a scale x(t, p) is E_t + P_p, so the gradient Σ_i δ_i x_iᵀ of a map is a combination of word and position
embeddings. The coefficient of a word is Σ δ_i / σ_i over the places where it occurs, that of a position the same over
the words that stand there: the coefficient of a word that occurs once is a summand of that of its position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.token_pairs import TokenPairs


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of words and positions in the gradients of the first maps, one map above the other, on the CPU.

    Attributes:
        pairs: the pairs in the row space.
        tokens: the distinct tokens of the pairs `[tokens]`.
        token_of: for each pair, the index of its token.
        words: coefficients of the tokens in all maps, each map at unit norm `[outputs of all maps, tokens]`.
        places: the same of the positions `[outputs of all maps, positions]`.
        word_values: coefficients of the tokens in the value map alone `[outputs, tokens]`.
        place_values: the same of the positions `[outputs, positions]`.
    """

    pairs: TokenPairs
    tokens: Tensor
    token_of: Tensor
    words: Tensor
    places: Tensor
    word_values: Tensor
    place_values: Tensor

    @classmethod
    def of(cls, observed: ObservedUpdate, pairs: TokenPairs, gradients: Mapping[str, Tensor]) -> Coefficients:
        """Solve for the coefficients.

        Args:
            observed: the update.
            pairs: the pairs in the row space.
            gradients: what is left of the first maps' gradients.
        """
        tokens, token_of = pairs.tokens.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        positions = torch.arange(int(pairs.positions.max()) + 1, device=tokens.device)
        each = [part.cpu() for part in _solved(observed, tokens, positions, gradients)]
        both = torch.cat([part / part.norm().clamp(min=1e-300) for part in each])
        ends = (len(tokens), len(tokens) + len(positions))
        return cls(
            pairs,
            tokens.cpu(),
            token_of.cpu(),
            words=both[:, : ends[0]],
            places=both[:, ends[0] : ends[1]],
            word_values=each[-1][:, : ends[0]],
            place_values=each[-1][:, ends[0] : ends[1]],
        )

    def shares(self, places: Tensor, free: Tensor | None = None) -> Tensor:
        """Return the non-negative coefficients of positions on words `[tokens, positions]`: who stands where.

        Args:
            places: what is left of the positions' coefficients.
            free: which tokens may still take a place; all if left out.
        """
        found = torch.zeros(len(self.tokens), places.shape[1], dtype=torch.float64)
        positions = self.pairs.positions.cpu()
        for position in range(places.shape[1]):
            there = self.token_of[positions == position]
            there = there if free is None else there[free[there]]
            if len(there):
                share = nnls(self.words[:, there].numpy(), places[:, position].numpy())[0]
                found[there, position] = torch.from_numpy(share)
        return found


def word_sizes(observed: ObservedUpdate, pairs: TokenPairs, gradients: Mapping[str, Tensor]) -> Tensor:
    """Return the norm of the coefficients of each pair's token in all maps `[pairs]`.

    Args:
        observed: the update.
        pairs: the pairs in the row space.
        gradients: of the first maps.
    """
    tokens, token_of = pairs.tokens.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    positions = torch.arange(int(pairs.positions.max()) + 1, device=tokens.device)
    each = torch.cat(_solved(observed, tokens, positions, gradients))
    return each[:, : len(tokens)].norm(dim=0)[token_of]


def _solved(
    observed: ObservedUpdate, tokens: Tensor, positions: Tensor, gradients: Mapping[str, Tensor]
) -> list[Tensor]:
    """Return the coefficients of tokens, then of positions, then of β, map by map `[outputs, coefficients]`."""
    inputs = observed.inputs
    scale = inputs.scale.double()
    basis = torch.cat([inputs.words[tokens].double() * scale, inputs.positions[positions].double() * scale])
    basis = torch.cat([basis, inputs.shift.double()[None]])
    inverse = torch.linalg.pinv(basis, rtol=1e-9)
    return [part.weight_in(gradients).double() @ inverse for part in inputs.maps]
