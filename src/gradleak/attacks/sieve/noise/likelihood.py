"""The likelihood of a sentence given a noisy update, and a test of whether it leaves anything unexplained.

With Gaussian noise of deviation σ on every entry, the log-likelihood of a sentence is −‖observed − gradient‖² / 2σ²,
over all tensors together. Sentences that differ in one word are thousands of nats apart even if no single layer has a
signal above the noise (MiniLM, σ = 1e-3). A prior differs between them by some ten nats and therefore decides only
what the update leaves open; it is added without a weight.

Far from the truth the squared error is a poor guide: the last layers have nearly all of the gradient's norm, while the
first ones depend most on the words. A search maximises the matched filter

    ⟨observed, gradient⟩ / ‖gradient‖,

in which the noise has deviation σ in every tensor, summed over tensors. The true sentence leaves residuals
⟨observed − gradient, gradient⟩ / σ‖gradient‖ that are standard normal, which tells when a search has converged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.noise.mask_fit import MaskFit
from gradleak.attacks.sieve.noise.visible_masks import visible_masks
from gradleak.exchange import Deadline
from gradleak.leakage.labels import nearest_labels, single_label
from gradleak.matching import Candidates, Cosine, Distance, Matcher, SquaredL2
from gradleak.matching.distances import Sums
from gradleak.priors import Prior
from gradleak.targets import Target

CONVERGED = 2.0
"""Mean squared residual below which a sentence explains the update: the truth has 1, near misses several."""

TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class MatchedFilter(Distance):
    """−Σ ⟨candidate, observed⟩ / ‖candidate‖: the negative matched-filter output, summed over tensors."""

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        return -(sums.inner / sums.candidate.clamp(min=TINY).sqrt() * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class NoiseResidual(Distance):
    """The mean over tensors of ⟨observed − candidate, candidate⟩² / σ²‖candidate‖².

    Attributes:
        deviation: σ.
    """

    deviation: float

    def __call__(self, sums: Sums) -> Tensor:
        """Average over tensors."""
        squares = (sums.inner - sums.candidate).square() / sums.candidate.clamp(min=TINY)
        share = sums.included / sums.included.sum(dim=0).clamp(min=1)
        return (squares * share).sum(dim=0) / self.deviation**2


class Likelihood:
    """Compares sentences with a noisy update of one sentence.

    Args:
        target: the model, a classifier.
        gradient: gradients by name.
        deviation: standard deviation of the noise.
        label: the class of the sentence.
        deadline: when to stop comparing.

    Attributes:
        dropout: the dropout masks that the update shows, with which sentences are compared; none without dropout.
    """

    def __init__(
        self,
        target: Target,
        gradient: Mapping[str, Tensor],
        deviation: float,
        label: int,
        deadline: Deadline | None = None,
    ) -> None:
        self.target, self.deviation, self.label = target, deviation, label
        self.dropout = visible_masks(target, gradient, deviation)
        self.matched_filter = Matcher(target, [gradient], MatchedFilter()).until(deadline or Deadline())
        others = (SquaredL2(), NoiseResidual(deviation=deviation), Cosine())
        self._squares, self._residual, self._cosine = map(self.matched_filter.with_distance, others)
        self.with_masks = MaskFit(self.matched_filter, self._squares, deviation, self.dropout, label)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return the matched-filter output of each sentence's gradient `[sentences]`; larger is better."""
        return -self._compared(self.matched_filter, sentences)

    def distance(self, sentence: Sequence[int]) -> float:
        """Return the cosine distance of a sentence's gradient, in which readings of all kinds are compared."""
        return float(self._compared(self._cosine, [sentence])[0])

    def leaves_only_noise(self, sentence: Sequence[int]) -> bool:
        """Return whether a sentence explains the update up to noise."""
        return bool(self._compared(self._residual, [sentence])[0] < CONVERGED)

    def posterior(self, sentences: Sequence[Sequence[int]], prior: Prior | None) -> Tensor:
        """Return the log-probability of sentences given the update, up to a constant `[sentences]`."""
        total = -self._compared(self._squares, sentences) / (2 * self.deviation**2)
        if prior is None:
            return total
        return total + log_prior(prior, self.target, sentences)

    def masks_for(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the dropout masks for sentences `[victims, candidates, sequences, tokens]`, by site."""
        return {name: mask.expand(*ids.shape[:3], *mask.shape) for name, mask in self.dropout.by_site().items()}

    def _compared(self, matcher: Matcher, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return distances `[sentences]`; sentences of one length are compared together, without padding."""
        distances = torch.empty(len(sentences), dtype=torch.float64, device=self.target.device)
        for length in {len(ids) for ids in sentences}:
            numbers = [number for number, ids in enumerate(sentences) if len(ids) == length]
            batch = self.target.pad([sentences[number] for number in numbers])
            labels = torch.full_like(batch.ids[None, :, :1], self.label)
            ids, mask = batch.ids[None, :, None], batch.mask[None, :, None]
            distances[numbers] = matcher(Candidates(ids, mask, labels, self.masks_for(ids)))[0]
        return distances


def log_prior(prior: Prior, target: Target, sentences: Sequence[Sequence[int]]) -> Tensor:
    """Return the log-probability that a prior gives to sentences `[sentences]`."""
    batch = target.pad(sentences)
    return -prior(batch.ids, batch.mask).double() * (batch.mask.sum(dim=1) - 1)


def likeliest_label(target: Target, gradient: Mapping[str, Tensor], sentence: Sequence[int]) -> int:
    """Return the class of a sentence: from the classifier's bias, or else the one with the largest matched filter."""
    label = single_label(target, gradient)
    if label is not None:
        return label

    def distances(labels: list[list[int]]) -> Tensor:
        return torch.stack([-Likelihood(target, gradient, 1.0, label)([sentence])[0] for (label,) in labels])

    return nearest_labels(distances, 1, target.num_labels)[0][0]
