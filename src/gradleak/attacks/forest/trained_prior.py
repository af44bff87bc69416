"""The target as a prior: which tokens it expects after a prefix once it has taken a step along the update.

A language model that was trained on a text expects its tokens; the update says how it was trained. So the attacker's
own copy of the target, moved by the update, proposes the next token of a text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.exchange import Protocol
from gradleak.leakage.drift import moved_by
from gradleak.targets import Target

STEP = 1e-3
"""How far an adapter's entries are moved, in the mean, where the update is a gradient: five steps of Adam at a rate of
2e-4."""


class TrainedPrior:
    """Next-token probabilities of a target that was moved by an update.

    Args:
        target: the model before training.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
    """

    def __init__(self, target: Target, gradient: Mapping[str, Tensor], protocol: Protocol) -> None:
        self.target = target
        training = protocol.training
        if training is not None:
            rate = training.lr * (training.steps or training.epochs or 1)
        else:
            squares = torch.stack([own.square().mean() for own in gradient.values()])
            rate = STEP / max(float(squares.mean().sqrt()), 1e-30)
        self._change = {name: -rate * own for name, own in gradient.items()}

    @torch.no_grad()
    def __call__(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Return the log of each token's probability after each prefix `[prefixes, vocabulary]`.

        The same for all tokens after the empty prefix, and for a classifier, which predicts no tokens.
        """
        with moved_by(self.target, self._change):
            return self._log_probabilities(prefixes)

    @torch.no_grad()
    def rises(self, prefix: Prefix) -> Tensor:
        """Return by how much the log of each token's probability after a prefix rises by the update `[vocabulary]`.

        A text's last token leaves no row, but it is trained for: it rises most.
        """
        return self([prefix])[0] - self._log_probabilities([prefix])[0]

    def _log_probabilities(self, prefixes: Sequence[Prefix]) -> Tensor:
        words = len(self.target.word_embeddings)
        found = torch.full((len(prefixes), words), -math.log(words), device=self.target.device)
        some = [number for number, prefix in enumerate(prefixes) if prefix]
        if self.target.task != "causal-lm" or not some:
            return found
        ids, mask = self.target.pad([prefixes[number] for number in some])
        logits = self.target.logits(self.target.embed(ids), mask)
        ends = torch.arange(len(some), device=ids.device), mask.sum(dim=1) - 1
        found[some] = torch.log_softmax(logits[ends], dim=-1).to(found)
        return found
