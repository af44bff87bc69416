"""Weigh sentences against the first layers' gradients: is each in the batch, with which class and weight?

A part A of a sum G of parts with independent rows and columns satisfies A G⁺ A = A (`plain/remainder.py`). With A = c g
for a sentence's gradient g this gives its weight c, whatever else is in the batch and was not found yet, and a misfit
that a sentence with one wrong word does not bring down, least of all in later layers. All sentences are held against
the whole gradient, so the order in which they are found does not matter, and what one leaves does not disturb the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.plain.remainder import Remainder
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.noise_floor import Spectrum
from gradleak.leakage.recompute import batch_gradient

FEW_CLASSES = 4
"""With more classes than this each sentence gets the one that the classifier's gradient shows."""

MOST_MISFIT = 1.0
"""A layer's misfit counts no more than this."""

DEPTH = 4
"""How many layers are used; never the last, of which a classifier uses one token."""


class WeightFit:
    """The sentences found so far, and what they leave of the first layer's gradients.

    Args:
        observed: the update.
        remainder: the gradients of the first layer's attention maps; `keep` subtracts from them.
    """

    def __init__(self, observed: ObservedUpdate, remainder: Remainder) -> None:
        self._observed, self._remainder = observed, remainder
        self._whole = {name: tensor.clone() for name, tensor in remainder.gradients.items()}
        layers = observed.target.layers[: max(1, min(DEPTH, len(observed.target.layers) - 1))]
        self._parts = [layer.attention_output for layer in layers if layer.attention_output.weight in observed.gradient]
        self._spectra = [observed.spectrum((part,)) for part in self._parts]
        self._tried: dict[Sentence, tuple[float, int, float]] = {}
        self.weights: dict[Sentence, tuple[int, float]] = {}

    def misfit(self, sentence: Sentence) -> float:
        """Return how badly a sentence fits with its best class: 0 for a part of the gradient."""
        if sentence not in self._tried:
            tries = [self._weighed(sentence, label) for label in self._classes(sentence)]
            self._tried[sentence] = min(tries)
        return self._tried[sentence][0]

    def keep(self, sentences: Iterable[Sentence]) -> None:
        """Keep these sentences, and subtract their gradients from the whole."""
        self.weights = {}
        for name, whole in self._whole.items():
            self._remainder.gradients[name].copy_(whole)
        for sentence in sentences:
            self.misfit(sentence)
            _, label, weight = self._tried[sentence]
            self.weights[sentence] = (label, weight)
            for name, own in self._gradient(sentence, label).items():
                self._remainder.gradients[name] -= weight * own.double()

    @property
    def unexplained(self) -> float:
        """What the sentences leave of the gradients, as a fraction of their norm."""
        return self._remainder.norm / float(torch.stack([t.square().sum() for t in self._whole.values()]).sum().sqrt())

    def _classes(self, sentence: Sentence) -> Iterable[int]:
        target = self._observed.target
        if target.num_labels <= FEW_CLASSES:
            return range(target.num_labels)
        labels = labels_from_classifier(target, self._observed.gradient, [*self.weights, sentence])
        return labels[-1:] if labels else [0]

    def _weighed(self, sentence: Sentence, label: int) -> tuple[float, int, float]:
        """Return the mean misfit of a sentence with a class, the class, and the weight in the first layer.

        The misfit is infinite if the weight is negative.
        """
        gradient = self._gradient(sentence, label, [part.weight for part in self._parts])
        fits = [_fit(part.weight_in(gradient), own) for part, own in zip(self._parts, self._spectra, strict=True)]
        misfits, weights = zip(*fits, strict=True)
        return (sum(misfits) / len(misfits) if weights[0] > 0 else torch.inf, label, weights[0])

    def _gradient(self, sentence: Sentence, label: int, names: list[str] | None = None) -> Mapping[str, Tensor]:
        observed = self._observed
        return batch_gradient(
            observed.target, [sentence], [label], names or list(self._whole), observed.protocol.precision
        )


def _fit(gradient: Tensor, whole: Spectrum) -> tuple[float, float]:
    """Return the misfit of a part of a matrix, and its weight, with the noise of the matrix divided out."""
    rank = whole.rank
    own = gradient.double() / whole.floor.rows / whole.floor.columns
    values = whole.values[:rank] * whole.floor.edge
    again = ((own @ whole.right[:rank].T) / values) @ (whole.left[:, :rank].T @ own)
    weight = float(own.square().sum() / (again * own).sum())
    return min(float((again * weight - own).norm() / own.norm()), MOST_MISFIT), weight
