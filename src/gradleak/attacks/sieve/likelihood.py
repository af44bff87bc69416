"""How likely a sentence makes a noisy update, and whether it leaves anything to explain.

Gaussian noise of deviation σ on every entry makes the log-likelihood of a sentence −‖observed − gradient‖² / 2σ², over
all tensors together. Sentences that differ in one word are thousands of nats apart even where nothing stands out of a
single layer (MiniLM, σ = 1e-3). What a prior says of them, some ten nats, therefore decides only what the update leaves
open; it is added as it is, with no weight to choose.

Far from the truth the squares are a poor guide: the last layers have nearly all of the gradient's norm, while the first
ones know the words. A search looks at how far each observed tensor stands out of the noise along the sentence's own,

    ⟨observed, gradient⟩ / ‖gradient‖,

where the noise has deviation σ in every tensor, and sums that over tensors. The true sentence leaves residuals
⟨observed − gradient, gradient⟩ / σ‖gradient‖ that are standard normal: this tells when a search has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.completion import Sent
from gradleak.attacks.sieve.labels import padded
from gradleak.attacks.sieve.seen import Seen
from gradleak.attacks.sieve.spikes import edge_by_median
from gradleak.exchange import Deadline
from gradleak.leakage.labels import single_label
from gradleak.leakage.perturbation import noise_level
from gradleak.matching import Candidates, Cosine, Distance, Matcher, SquaredL2
from gradleak.matching.distances import Sums
from gradleak.priors import Prior
from gradleak.targets import Target

ARRIVED = 2.0
"""The mean square of residuals below which a sentence explains the update: the truth has 1, near misses several."""

TINY = 1e-30


@dataclass(frozen=True, kw_only=True)
class Standing(Distance):
    """−Σ ⟨candidate, observed⟩ / ‖candidate‖: how far the observed tensors stand out along the candidate's."""

    def __call__(self, sums: Sums) -> Tensor:
        """Sum over tensors."""
        return -(sums.inner / sums.candidate.clamp(min=TINY).sqrt() * sums.included).sum(dim=0)


@dataclass(frozen=True, kw_only=True)
class Residual(Distance):
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
    """Judges sentences by a noisy update of one sentence.

    Args:
        target: the model, a classifier.
        gradient: gradients by name.
        deviation: of the noise.
        label: the class of the sentence.
        deadline: after which sentences are not compared any more.
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
        self.standing = Matcher(target, [gradient], Standing()).until(deadline or Deadline())
        others = (SquaredL2(), Residual(deviation=deviation), Cosine())
        self._squares, self._residual, self._cosine = map(self.standing.with_distance, others)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return how far the update stands out along each sentence's gradient `[sentences]`."""
        return -self._compared(self.standing, sentences)

    def distance(self, sentence: Sequence[int]) -> float:
        """Return the cosine distance of a sentence's gradient, by which readings of all kinds can be compared."""
        return float(self._compared(self._cosine, [sentence])[0])

    def explained(self, sentence: Sequence[int]) -> bool:
        """Return whether a sentence leaves nothing of the update but noise."""
        return bool(self._compared(self._residual, [sentence])[0] < ARRIVED)

    def posterior(self, sentences: Sequence[Sequence[int]], prior: Prior | None) -> Tensor:
        """Return the log-probability of sentences given the update, but for a constant `[sentences]`."""
        total = -self._compared(self._squares, sentences) / (2 * self.deviation**2)
        if prior is None:
            return total
        ids, mask = padded(self.target, sentences)
        return total - prior(ids, mask).double() * (mask.sum(dim=1) - 1)

    def _compared(self, matcher: Matcher, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return distances; sentences of one length go together, so that nothing is padded."""
        distances = torch.empty(len(sentences), dtype=torch.float64, device=self.target.device)
        for length in {len(ids) for ids in sentences}:
            numbers = [number for number, ids in enumerate(sentences) if len(ids) == length]
            ids, mask = padded(self.target, [sentences[number] for number in numbers])
            labels = torch.full_like(ids[None, :, :1], self.label)
            distances[numbers] = matcher(Candidates(ids[None, :, None], mask[None, :, None], labels))[0]
        return distances


def deviation_of(seen: Seen) -> float:
    """Return the standard deviation of the noise of an update, 0 if there is none.

    It stands alone in the keys' biases; where they were not sent, in the median singular value of the first map.
    """
    level = noise_level(seen.target, seen.gradient)
    if level is not None:
        return level
    matrix = seen.inputs.maps[0].weight_in(seen.gradient).double()
    wide, narrow = max(matrix.shape), min(matrix.shape)
    edge = float(torch.linalg.svdvals(matrix).median()) * edge_by_median(narrow / wide)
    return edge / (wide**0.5 + narrow**0.5)


def noise_share(seen: Seen) -> float:
    """Return how much of an update's squared norm is noise; 0 for one that was compressed."""
    if not Sent([part.weight_in(seen.gradient) for part in seen.inputs.maps]).complete:
        return 0.0
    whole = float(sum(tensor.double().square().sum() for tensor in seen.gradient.values()))
    return deviation_of(seen) ** 2 * sum(tensor.numel() for tensor in seen.gradient.values()) / max(whole, TINY)


def label_of(target: Target, gradient: Mapping[str, Tensor], sentence: Sequence[int]) -> int:
    """Return the class of a sentence: from the classifier's bias, or else that whose gradient stands out most."""
    label = single_label(target, gradient)
    if label is not None:
        return label
    judges = [Likelihood(target, gradient, 1.0, label) for label in range(target.num_labels)]
    return int(torch.stack([judge([sentence])[0] for judge in judges]).argmax())
