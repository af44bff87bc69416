"""Score sentences by the signal of the first few maps that they capture, and propose words by it."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.signal_subspace import SignalSubspace, signal_subspace
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.targets import Projection, Target
from gradleak.targets.hooks import captured_inputs


class SentenceScorer:
    """The fraction of the signal of several maps that a sentence captures.

    Args:
        observed: the update.
    """

    def __init__(self, observed: ObservedUpdate) -> None:
        self.target, self.inputs = observed.target, observed.inputs
        self.words, self.common = observed.words, observed.common
        self.first = signal_subspace(observed.map_gradients)
        self.later: dict[str, SignalSubspace] = {}
        for parts in _later_maps(self.target):
            if all(part.weight in observed.gradient for part in parts):
                signal = signal_subspace([part.weight_in(observed.gradient) for part in parts])
                if signal is not None:
                    self.later[parts[0].module] = signal

    def by_first_maps(self, ids: Tensor) -> Tensor:
        """Return the fraction of the first maps' signal that sentences `[sentences, tokens]` capture `[sentences]`."""
        assert self.first is not None
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.first.captured_energy(self.inputs(ids, positions))

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the mean captured fraction over maps `[sentences]`, the first maps counting twice."""
        total = 2 * self.by_first_maps(ids)
        if self.later:
            activations = captured_inputs(self.target, ids, list(self.later))
            total = total + sum(
                signal.captured_energy(activations[path].double()) for path, signal in self.later.items()
            )
        return total / (2 + len(self.later))

    def gains(self, tokens: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        """Return what tokens at positions capture of the first maps' signal beside given rows `[tokens, positions]`.

        All rows share a large component: what matters is what a token adds to it.
        """
        assert self.first is not None
        basis = torch.linalg.qr(rows.T)[0]
        factor = self.first.factor - (self.first.factor @ basis) @ basis.T
        own = 1.0 - self.inputs.captured_energy(basis, tokens, places)
        return self.inputs.captured_energy(factor.T, tokens, places) / own.clamp(min=1e-3)

    def best_words(self, sentence: Tensor, place: int, count: int) -> Tensor:
        """Return the tokens that capture most at one position beside all others of a sentence `[count]`."""
        places = torch.arange(len(sentence), device=sentence.device)
        others = places != place
        rows = self.inputs(sentence[others], places[others])
        gain = self.gains(self.words, places[place : place + 1], rows)[:, 0]
        return self.words[gain.topk(min(count, len(gain))).indices]

    def with_words(self, words: Tensor) -> SentenceScorer:
        """Return a scorer that proposes from fewer words, which is faster."""
        narrow = copy(self)
        narrow.words = words
        return narrow


def _later_maps(target: Target) -> list[tuple[Projection, ...]]:
    """Return the maps that follow the first ones, those with the same input together."""
    first, *others = target.layers
    maps: list[tuple[Projection, ...]] = [(first.attention_output,), (first.feed_forward_in,)]
    return maps + [(layer.query, layer.key, layer.value) for layer in others[:1]]
