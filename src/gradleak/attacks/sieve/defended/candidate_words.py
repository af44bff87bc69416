"""The words to try at each position of a sentence: those found, and some that the pursuit may have missed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.edits import word_positions
from gradleak.attacks.sieve.observed import ObservedUpdate

MISSING = 48
"""How many words of the whole vocabulary are tried at each position: those that capture most of the residual."""

MARGIN = 30
"""Words are proposed for so many positions beyond the longest sentence, which may grow by one in every step."""


class CandidateWords:
    """Proposes words for every position of a batch's sentences.

    Args:
        observed: the update.
        basis: the signal of the first maps, orthonormal columns `[width, rank]`.
        found: the tokens found so far, which are tried everywhere.
        missing: how many further words are tried at each position; 0 if all words are known to be found.
    """

    def __init__(self, observed: ObservedUpdate, basis: Tensor, found: Tensor, missing: int = MISSING) -> None:
        self._observed, self._basis, self._missing = observed, basis, missing
        ends = torch.tensor(observed.target.special_tokens[1], device=found.device, dtype=torch.long)
        self._found = found[~torch.isin(found, ends)]
        self._places = torch.arange(observed.longest, device=found.device)

    def beside(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return words for all positions `[positions, words]`, given the sentences so far.

        A word may have been missed if its x captures much of the signal outside the rows of all sentences.
        """
        inputs, vocabulary = self._observed.inputs, self._observed.words
        if not self._missing:
            return self._found.expand(min(max(map(len, sentences)) + MARGIN, len(self._places)), -1)
        rows = [inputs(ids, self._places[: len(ids)]) for ids in sentences]
        shared = torch.linalg.qr(torch.cat([self._observed.common, *rows]).T)[0]
        left = self._basis - shared @ (shared.T @ self._basis)
        places = self._places[: max(map(len, sentences)) + MARGIN]
        own = (1.0 - inputs.captured_energy(shared, vocabulary, places)).clamp(min=1e-3)
        gain = inputs.captured_energy(left, vocabulary, places) / own
        missing = vocabulary[gain.topk(min(self._missing, len(gain)), dim=0).indices].T  # [positions, words]
        there = [ids[list(word_positions(self._observed.target, ids))] for ids in sentences]
        known = torch.unique(torch.cat([self._found, *there]))
        return torch.cat([known.expand(len(missing), -1), missing], dim=1)
