"""The words to try at each position of a sentence: those found, and some that the pursuit may have missed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate

FOUND, MISSING = 128, 48
"""How many words are tried at each position: of those found, those that capture most of the signal there or next to
it; of the whole vocabulary, those that capture most of the residual."""

LIKELY_LENGTH = 32
"""Words are ranked in advance for sentences of so many tokens; for longer ones when they are met."""

MARGIN = 8
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
        self.found = torch.unique(found[~torch.isin(found, ends)])
        self._places = torch.arange(observed.longest, device=found.device)
        self._likely = self._likely_found(self._places[: MARGIN + LIKELY_LENGTH])

    def beside(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return words for all positions `[positions, words]`, given the sentences so far.

        A word may have been missed if its x captures much of the signal outside the rows of all sentences.
        """
        inputs, vocabulary = self._observed.inputs, self._observed.words
        places = self._places[: max(map(len, sentences)) + MARGIN]
        if len(places) > len(self._likely):
            self._likely = self._likely_found(places)
        found = self._likely[: len(places)]
        if not self._missing:
            return found
        rows = [inputs(ids, self._places[: len(ids)]) for ids in sentences]
        shared = torch.linalg.qr(torch.cat([self._observed.common, *rows]).T)[0]
        left = self._basis - shared @ (shared.T @ self._basis)
        own = (1.0 - inputs.captured_energy(shared, vocabulary, places)).clamp(min=1e-3)
        gain = inputs.captured_energy(left, vocabulary, places) / own
        missing = vocabulary[gain.topk(min(self._missing, len(gain)), dim=0).indices].T  # [positions, words]
        return torch.cat([found, missing], dim=1)

    def _likely_found(self, places: Tensor) -> Tensor:
        """Return the words found that capture most at each position `[positions, words]`."""
        inputs = self._observed.inputs
        shared = torch.linalg.qr(self._observed.common.T)[0]
        left = self._basis - shared @ (shared.T @ self._basis)
        own = (1.0 - inputs.captured_energy(shared, self.found, places)).clamp(min=1e-3)
        gain = inputs.captured_energy(left, self.found, places) / own  # [words, positions]
        near = torch.nn.functional.max_pool1d(gain, 3, stride=1, padding=1)
        return self.found[near.topk(min(FOUND, len(near)), dim=0).indices].T
