"""The test of a whole sentence where the row space is not exact: its contexts, layer by layer.

The attention output map of a layer is fed one context for each token of each sentence. A context of the first layer
depends on the whole sentence; one of the third depends on it three times over, so that a sentence with one word wrong
has other contexts everywhere. What stands out of the maps' gradients spans the contexts of the batch. A sentence is
judged by the share of its contexts that lies in it: this needs no label, no other sentence of the batch and no backward
pass, and of some hundred sentences that differ in one word the true one mostly has the largest share (MiniLM).

Sentences that are known already can be held: their contexts are taken out of what is looked for, so that no sentence is
found twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from gradleak.attacks.sieve.contexts import Pairs
from gradleak.attacks.sieve.forward import captured_inputs
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.spikes import spikes
from gradleak.exchange import Deadline
from gradleak.targets import Target

DEPTH = 4
"""So many layers are looked at; the last never is: a classifier takes one token from it."""

OF_ITSELF = 0.1
"""A context of which less than this is left beside those held says nothing."""

AT_ONCE = 128


class LayeredTest:
    """The mean share of a sentence's contexts that lies in what stands out of an update.

    Args:
        target: the model.
        inputs: the tables of x(t, p).
        gradient: gradients by name.
    """

    def __init__(self, target: Target, inputs: Inputs, gradient: Mapping[str, Tensor]) -> None:
        self.target, self.inputs = target, inputs
        self._spaces: dict[str, Tensor] = {}  # directions [width, spikes] by module
        for layer in target.layers[: max(1, min(DEPTH, len(target.layers) - 1))]:
            part = layer.attention_output
            found = spikes([part.weight_in(gradient)]) if part.weight in gradient else None
            if found is None:
                break
            self._spaces[part.module] = found.directions.T.to(target.word_embeddings)
        self._left = self._spaces
        self._held = {path: directions[:, :0] for path, directions in self._spaces.items()}

    @property
    def depth(self) -> int:
        """How many layers are looked at: those from the first on that something stands out of."""
        return len(self._spaces)

    def with_fixed_sequences(self, sentences: Iterable[Tensor]) -> LayeredTest:
        """Return the test for a sentence beside others, which are not looked for any more."""
        held = copy(self)
        fed = [captured_inputs(self.target, ids[None], list(self._spaces)) for ids in sentences]
        if fed:
            rows = {path: torch.cat([each[path][0] for each in fed]) for path in self._spaces}
            held._held = {path: torch.linalg.qr(contexts.T)[0] for path, contexts in rows.items()}
            held._left = {
                path: all_ - held._held[path] @ (held._held[path].T @ all_) for path, all_ in self._spaces.items()
            }
        return held

    def __call__(self, ids: Tensor, layers: int | None = None) -> Tensor:
        """Return the mean share over the first layers, all by default: `[sentences, tokens]` gives `[sentences]`."""
        paths = list(self._spaces)[:layers]
        shares = []
        for part in torch.split(ids, AT_ONCE):
            fed = captured_inputs(self.target, part, paths)
            shares.append(torch.stack([self._share(fed[path], path) for path in paths]).mean(dim=0))
        return torch.cat(shares)

    def first(self, ids: Tensor) -> Tensor:
        """Return the share of the first layer's contexts alone `[sentences]`.

        Sentences that differ in one word have most tokens at most places in common: the first layer's maps are run once
        for each of these.
        """
        path, *_ = self._spaces
        positions = len(self.inputs.positions)
        each, numbers = torch.unique(
            ids * positions + torch.arange(ids.shape[1], device=ids.device), return_inverse=True
        )
        pairs = Pairs.of(self.target, self.inputs, each // positions, each % positions).to(self._left[path].dtype)
        return torch.cat([self._share(pairs.contexts(part), path) for part in torch.split(numbers, AT_ONCE)])

    def _share(self, contexts: Tensor, path: str) -> Tensor:
        """Return the mean share of contexts `[sentences, tokens, width]`, of what is left of each beside those held."""
        whole = contexts.square().sum(dim=-1)
        own = torch.maximum(whole - (contexts @ self._held[path]).square().sum(dim=-1), OF_ITSELF * whole)
        return ((contexts @ self._left[path]).square().sum(dim=-1) / own.clamp(min=1e-12)).mean(dim=-1)


def likeliest(
    test: LayeredTest, kinds: Sequence[Tensor], breadth: Sequence[int], deadline: Deadline | None = None
) -> tuple[list[Tensor], Tensor]:
    """Return the sentences that pass a test best, the best first, and their shares; none if the time is up.

    All are looked at in the first layer, the best of each length in two, and the best of those in all.

    Args:
        test: the test.
        kinds: sentences, those of one length together, each `[sentences, tokens]`.
        breadth: how many of each length are left after the first layer, how many of all after two, and in the end.
        deadline: when to give up.
    """
    deadline = deadline or Deadline()
    kept = []
    for kind in kinds:
        if deadline.passed:
            return [], torch.empty(0)
        if len(kind):
            kept.append(kind[test.first(kind).topk(min(breadth[0], len(kind))).indices])
    for layers, count in ((2, breadth[1]), (test.depth, breadth[2])):
        if deadline.passed:
            return [], torch.empty(0)
        shares = torch.cat([test(kind, layers) for kind in kept])
        least = shares.topk(min(count, len(shares))).values[-1]
        chosen = torch.split(shares, [len(kind) for kind in kept])
        kept = [kind[share >= least] for kind, share in zip(kept, chosen, strict=True)]
        kept = [kind for kind in kept if len(kind)]
    order = shares[shares >= least].argsort(descending=True)
    sentences = [ids for kind in kept for ids in kind]
    return [sentences[number] for number in order.tolist()], shares[shares >= least][order]
