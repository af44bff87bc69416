"""Judge whole texts by the whole update, where noise or the optimiser hides what the rows combine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.exchange import Protocol
from gradleak.leakage.first_step import as_first_step
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.recompute import batch_gradient
from gradleak.matching import vanishing_parameters
from gradleak.targets import Target


class UpdateJudge:
    """The mean cosine distance of texts' gradient tensors from the update's.

    Several steps of Adam are close to a multiple of the gradient's signs, one number for each step; texts are compared
    by what a step of Adam would make of their gradient. So are those of one step: it hardly shows the size of large
    entries.

    Args:
        target: the model before training.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
    """

    def __init__(self, target: Target, gradient: Mapping[str, Tensor], protocol: Protocol) -> None:
        self.target, self.gradient = target, gradient
        training = protocol.training
        self._epsilon = training.eps if training is not None and training.optimizer != "sgd" else None
        left_out = vanishing_parameters(target)
        self._names = [name for name, own in gradient.items() if name not in left_out and bool(own.any())]
        self._observed = as_first_step(gradient, training)
        self._known: dict[tuple[Prefix, ...], float] = {}

    def __call__(self, texts: Sequence[Prefix]) -> float:
        """Return the distance of a batch of texts from the update, from 0 to 2; 2 for texts too short to train on."""
        key = tuple(sorted(texts))
        if key not in self._known:
            self._known[key] = self._distance(key)
        return self._known[key]

    def beside(self, others: Sequence[Prefix], text: Prefix) -> float:
        """Return the distance of a text together with others."""
        return self([*others, text])

    def _distance(self, texts: Sequence[Prefix]) -> float:
        if not texts or min(map(len, texts)) < self.target.min_length:
            return 2.0
        labels = None
        if self.target.task == "classification":
            labels = labels_from_classifier(self.target, self.gradient, list(texts)) or [0] * len(texts)
        found = batch_gradient(self.target, texts, labels, self._names)
        if self._epsilon is not None:
            found = {name: own / (own.abs() + self._epsilon) for name, own in found.items()}
        pairs = [(found[name].flatten(), self._observed[name].flatten()) for name in self._names]
        return 1.0 - float(torch.stack([cosine_similarity(one, other, dim=0) for one, other in pairs]).mean())
