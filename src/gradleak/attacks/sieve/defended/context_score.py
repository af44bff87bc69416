"""Score whole sentences of a defended update by their attention contexts, layer by layer.

The inputs of a layer's attention output map are one context per token of each sentence. A context of the first layer
depends on the whole sentence, one of the third depends on it three times over: a sentence with one wrong word has
other contexts everywhere. The signal of the maps' gradients spans the contexts of the batch. A sentence's score is the
fraction of its contexts in that span: this needs no label, no other sentence of the batch and no backward pass, and
among some hundred sentences that differ in one word the true one mostly has the largest score (MiniLM).

Sentences that are already known can be fixed: their contexts are projected out, so no sentence is found twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.signal_subspace import signal_subspace
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.exchange import Deadline
from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.noise_floor import Spectrum
from gradleak.targets import Projection, Target
from gradleak.targets.hooks import captured_inputs

DEPTH = 4
"""How many layers are used; never the last, of which a classifier uses one token."""

OWN_PART = 0.1
"""A context with less than this fraction outside the fixed sentences' contexts is not informative."""

AT_ONCE = 128
"""How many sentences are scored at a time."""


class ContextScore:
    """The mean fraction of a sentence's contexts in the signal of an update.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
        spectrum: tells the signal of a map apart by whitening, as is best unless entries were removed; None for the
            singular values as they are.
    """

    def __init__(
        self,
        target: Target,
        inputs: LayerInputs,
        gradient: Mapping[str, Tensor],
        spectrum: Callable[[Sequence[Projection]], Spectrum] | None = None,
    ) -> None:
        self.target, self.inputs = target, inputs
        self._spaces: dict[str, Tensor] = {}  # directions [width, rank] by module
        for layer in target.layers[: max(1, min(DEPTH, len(target.layers) - 1))]:
            part = layer.attention_output
            if part.weight not in gradient:
                break
            directions = _clear(spectrum((part,))) if spectrum else _strongest(part.weight_in(gradient))
            if directions is None:
                break
            self._spaces[part.module] = directions.to(target.word_embeddings)
        self._left = self._spaces
        self._fixed = {path: directions[:, :0] for path, directions in self._spaces.items()}

    @property
    def depth(self) -> int:
        """How many layers, from the first on, have a signal."""
        return len(self._spaces)

    def with_fixed_sequences(self, sentences: Iterable[Tensor]) -> ContextScore:
        """Return the score of a sentence beside others, whose contexts no longer count."""
        beside = copy(self)
        contexts = [captured_inputs(self.target, ids[None], list(self._spaces)) for ids in sentences]
        if contexts:
            rows = {path: torch.cat([each[path][0] for each in contexts]) for path in self._spaces}
            beside._fixed = {path: torch.linalg.qr(own.T)[0] for path, own in rows.items()}
            beside._left = {
                path: every - beside._fixed[path] @ (beside._fixed[path].T @ every)
                for path, every in self._spaces.items()
            }
        return beside

    def __call__(self, ids: Tensor, layers: int | None = None) -> Tensor:
        """Return the mean score over the first layers, all by default: `[sentences, tokens]` gives `[sentences]`."""
        paths = list(self._spaces)[:layers]
        scores = []
        for part in torch.split(ids, AT_ONCE):
            contexts = captured_inputs(self.target, part, paths)
            scores.append(torch.stack([self._captured(contexts[path], path) for path in paths]).mean(dim=0))
        return torch.cat(scores)

    def first_layer(self, ids: Tensor) -> Tensor:
        """Return the score by the first layer's contexts alone `[sentences]`.

        Sentences that differ in one word have most (token, position) pairs in common: the first layer's maps run once
        for each distinct pair.
        """
        path, *_ = self._spaces
        positions = len(self.inputs.positions)
        each, numbers = torch.unique(
            ids * positions + torch.arange(ids.shape[1], device=ids.device), return_inverse=True
        )
        pairs = TokenPairs.of(self.target, self.inputs, each // positions, each % positions).to(self._left[path].dtype)
        return torch.cat([self._captured(pairs.contexts(part), path) for part in torch.split(numbers, AT_ONCE)])

    def each(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return the scores of sentences of several lengths `[sentences]`."""
        return torch.cat([self(ids[None]) for ids in sentences])

    def _captured(self, contexts: Tensor, path: str) -> Tensor:
        """Return the mean captured fraction of contexts `[sentences, tokens, width]`, beside the fixed ones."""
        whole = contexts.square().sum(dim=-1)
        own = torch.maximum(whole - (contexts @ self._fixed[path]).square().sum(dim=-1), OWN_PART * whole)
        return ((contexts @ self._left[path]).square().sum(dim=-1) / own.clamp(min=1e-12)).mean(dim=-1)


def _clear(spectrum: Spectrum) -> Tensor | None:
    """Return the row space of a whitened signal as columns `[width, rank]`; None if there is none."""
    return spectrum.basis if 0 < spectrum.rank < len(spectrum.floor.columns) else None


def _strongest(gradient: Tensor) -> Tensor | None:
    """Return the strongest directions of a gradient as columns `[width, rank]`; None if none exceeds the noise."""
    signal = signal_subspace([gradient])
    return None if signal is None else signal.directions.T


def best_by_context(
    score: ContextScore, groups: Sequence[Tensor], breadth: Sequence[int], deadline: Deadline | None = None
) -> tuple[list[Tensor], Tensor]:
    """Return the sentences with the largest scores, the best first, and their scores; none if the deadline has passed.

    All are scored by the first layer, the best of each length by two, and the best of those by all.

    Args:
        score: the score.
        groups: sentences, those of one length together, each `[sentences, tokens]`.
        breadth: how many of each length remain after the first layer, how many of all after two, and in the end.
        deadline: when to give up.
    """
    deadline = deadline or Deadline()
    kept = []
    for group in groups:
        if deadline.passed:
            return [], torch.empty(0)
        if len(group):
            kept.append(group[score.first_layer(group).topk(min(breadth[0], len(group))).indices])
    for layers, count in ((2, breadth[1]), (score.depth, breadth[2])):
        if deadline.passed:
            return [], torch.empty(0)
        scores = torch.cat([score(group, layers) for group in kept])
        least = scores.topk(min(count, len(scores))).values[-1]
        chosen = torch.split(scores, [len(group) for group in kept])
        kept = [group[own >= least] for group, own in zip(kept, chosen, strict=True)]
        kept = [group for group in kept if len(group)]
    order = scores[scores >= least].argsort(descending=True)
    sentences = [ids for group in kept for ids in group]
    return [sentences[number] for number in order.tolist()], scores[scores >= least][order]
