"""What an update proves of texts that were read from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gradleak.attacks.forest.likely_ends import with_likely_ends
from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.attacks.forest.reading import ForestReading
from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.proof import Proof, prove_by_whole_gradient, relative_difference
from gradleak.leakage.recompute import batch_gradient
from gradleak.matching import vanishing_parameters
from gradleak.targets import Target

ROUNDED = 0.05
"""Texts that leave less of a rounded update than this explain it as far as rounding lets it be told."""


@dataclass(frozen=True)
class TextProver:
    """Computes the whole update again from texts.

    Attributes:
        target: a decoder.
        gradient: gradients by name.
        protocol: what is public of how the update was made.
        exact: whether the update is one exact gradient, neither rounded nor of local steps.
        deadline: when to give a long repetition of the client's training up.
    """

    target: Target
    gradient: Mapping[str, Tensor]
    protocol: Protocol
    exact: bool
    deadline: Deadline

    def reading_of(self, texts: list[Prefix]) -> ForestReading:
        """Return texts with their labels, and what the update proves of them."""
        labels = None
        if self.target.task != "causal-lm":
            labels = labels_from_classifier(self.target, self.gradient, texts)
        tried = [(texts, self._proof(texts, labels))]
        if not tried[0][1].verified and (ended := self._ended(texts)) != texts:
            tried.append((ended, self._proof(ended, labels)))
        texts, proof = min(tried, key=lambda one: (not one[1].verified, one[1].unexplained))
        notes = [f"{len(texts)} texts of {', '.join(map(str, sorted(map(len, texts))))} tokens"]
        left = proof.unexplained
        if not proof.verified and left < ROUNDED:
            notes.append(
                f"the texts explain all but {100 * left:.2g} % of the update: about what rounding leaves, and no proof"
            )
        settled = proof.verified or (not self.exact and left < ROUNDED)
        return ForestReading(texts, labels, left, notes, proof, settled)

    def likely_ended(self, texts: list[Prefix], *, ends_read: bool) -> list[Prefix]:
        """Return texts of one exact gradient with last tokens that left no trace of their own."""
        names = [name for name in self.gradient if name not in vanishing_parameters(self.target)]

        def distance(tried: list[Prefix]) -> float:
            if min(map(len, tried)) < self.target.min_length:
                return math.inf
            return relative_difference(self.gradient, batch_gradient(self.target, tried, None, names))[0]

        return with_likely_ends(self.target, texts, distance, self.deadline, ends_read=ends_read)

    def _proof(self, texts: list[Prefix], labels: list[int] | None) -> Proof:
        return prove_by_whole_gradient(self.target, self.gradient, texts, labels, self.protocol, self.deadline)

    def _ended(self, texts: list[Prefix]) -> list[Prefix]:
        """Return texts ended as the tokenizer ends them: coefficients of last prefixes may be below the noise."""
        end = self.target.special_tokens[1]
        if self.exact or not end:
            return texts
        return [text if text[-len(end) :] == end else (*text, *end) for text in texts]
