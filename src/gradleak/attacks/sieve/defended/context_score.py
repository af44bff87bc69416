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

from gradleak.attacks.sieve.defended.context_space import ContextSpace
from gradleak.attacks.sieve.defended.edits import Replacements
from gradleak.attacks.sieve.defended.signal_subspace import signal_subspace
from gradleak.attacks.sieve.token_pairs import PairTable
from gradleak.exchange import Deadline
from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.noise_floor import Spectrum
from gradleak.targets import Projection, Target
from gradleak.targets.hooks import captured_inputs

AT_ONCE = 128
"""How many sentences are scored at a time."""


class ContextScore:
    """The mean fraction of a sentence's contexts in the signal of an update.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
        weights: how much each layer counts, from the first on; never the last, of which a classifier uses one token.
        spectrum: tells the signal of a map apart by whitening, as is best unless entries were removed; None for the
            singular values as they are.
    """

    def __init__(
        self,
        target: Target,
        inputs: LayerInputs,
        gradient: Mapping[str, Tensor],
        weights: Sequence[float],
        spectrum: Callable[[Sequence[Projection]], Spectrum] | None = None,
    ) -> None:
        self.target, self.inputs = target, inputs
        self._spaces: dict[str, ContextSpace] = {}  # by module
        for layer in target.layers[: max(1, min(len(weights), len(target.layers) - 1))]:
            part = layer.attention_output
            if part.weight not in gradient:
                break
            directions = _clear(spectrum((part,))) if spectrum else _strongest(part.weight_in(gradient))
            if directions is None:
                break
            self._spaces[part.module] = ContextSpace.of(directions.to(target.word_embeddings))
        self._weights = torch.tensor(weights).to(target.word_embeddings)
        self._table = PairTable(target, inputs)

    @property
    def depth(self) -> int:
        """How many layers, from the first on, have a signal."""
        return len(self._spaces)

    def with_fixed_sequences(self, sentences: Iterable[Tensor]) -> ContextScore:
        """Return the score of a sentence beside others, whose contexts no longer count."""
        beside = copy(self)
        contexts = [captured_inputs(self.target, ids[None], list(self._spaces)) for ids in sentences]
        if contexts:
            beside._spaces = {
                path: space.beside(torch.cat([each[path][0] for each in contexts]))
                for path, space in self._spaces.items()
            }
        return beside

    def __call__(self, ids: Tensor, layers: int | None = None) -> Tensor:
        """Return the mean score over the first layers, all by default: `[sentences, tokens]` gives `[sentences]`."""
        paths = list(self._spaces)[:layers]
        weights = self._weights[: len(paths)] / self._weights[: len(paths)].sum()
        scores = []
        for part in torch.split(ids, AT_ONCE):
            contexts = captured_inputs(self.target, part, paths)
            scores.append(weights @ torch.stack([self._spaces[path].captured(contexts[path]) for path in paths]))
        return torch.cat(scores)

    def first_layer(self, group: Tensor | Replacements) -> Tensor:
        """Return the score of sentences by the first layer's contexts alone `[sentences]`."""
        space, table = next(iter(self._spaces.values())), self._table
        table.trim()
        if isinstance(group, Replacements):
            places = group.places.tolist()
            words = table.rows(group.tokens, group.places[:, None].expand_as(group.tokens))
            bases = table.rows(group.bases, _positions(group.bases))
            each = zip(bases, places, words, strict=True)
            return torch.cat([space.replaced(table.pairs, base, place, tried) for base, place, tried in each])
        parts = torch.split(table.rows(group, _positions(group)), AT_ONCE)
        return torch.cat([space.captured(table.pairs.contexts(part)) for part in parts])

    def each(self, sentences: Sequence[Tensor]) -> Tensor:
        """Return the scores of sentences of several lengths `[sentences]`."""
        return torch.cat([self(ids[None]) for ids in sentences])


def _positions(ids: Tensor) -> Tensor:
    """Return the position of each token of sentences `[sentences, tokens]`."""
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _clear(spectrum: Spectrum) -> Tensor | None:
    """Return the row space of a whitened signal as columns `[width, rank]`; None if there is none."""
    return spectrum.basis if 0 < spectrum.rank < len(spectrum.floor.columns) else None


def _strongest(gradient: Tensor) -> Tensor | None:
    """Return the strongest directions of a gradient as columns `[width, rank]`; None if none exceeds the noise."""
    signal = signal_subspace([gradient])
    return None if signal is None else signal.directions.T


def best_by_context(
    score: ContextScore,
    groups: Sequence[Tensor | Replacements],
    breadth: Sequence[int],
    deadline: Deadline | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Return the sentences with the largest scores, the best first, and their scores; none if the deadline has passed.

    All are scored by the first layer, the best of each length by half of the layers, and the best of those by all.

    Args:
        score: the score.
        groups: sentences, each group of one length.
        breadth: how many of each length remain after the first layer, how many of all after half, and in the end.
        deadline: when to give up.
    """
    deadline = deadline or Deadline()
    by_length: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for group in groups:
        if deadline.passed:
            return [], torch.empty(0)
        sentences = group.sentences if isinstance(group, Replacements) else group
        if len(sentences):
            by_length.setdefault(sentences.shape[1], []).append((sentences, score.first_layer(group)))
    kept = []
    for parts in by_length.values():
        sentences, scores = (torch.cat(each) for each in zip(*parts, strict=True))
        kept.append(sentences[scores.topk(min(breadth[0], len(scores))).indices])
    for layers, count in (((score.depth + 1) // 2, breadth[1]), (score.depth, breadth[2])):
        if deadline.passed:
            return [], torch.empty(0)
        scores = torch.cat([score(group, layers) for group in kept])
        least = scores.topk(min(count, len(scores))).values[-1]
        chosen = torch.split(scores, [len(group) for group in kept])
        kept = [group[own >= least] for group, own in zip(kept, chosen, strict=True)]
        kept = [group for group in kept if len(group)]
    order = scores[scores >= least].argsort(descending=True)
    found = [ids for group in kept for ids in group]
    return [found[number] for number in order.tolist()], scores[scores >= least][order]
