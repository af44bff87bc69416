"""The remainder of the first layer's gradients after the sentences found so far have been subtracted from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.leakage.noise_floor import NoiseFloor
from gradleak.leakage.recompute import batch_gradient
from gradleak.leakage.row_space import CLEAN, ROUNDING, Subspace, row_space, signal_space
from gradleak.targets import Projection, Target

CLOSE = 1e-3
"""A weight within this relative distance of a count over a batch size is rounded to it."""

MISFIT = 0.05
"""A sentence is subtracted if A G⁺ A = A holds to this relative error."""


@dataclass(frozen=True)
class Remainder:
    """Gradients of the first layer's maps, less the sentences that were subtracted.

    Attributes:
        gradients: the gradients by name, in float64; changed by subtraction.
        smallest: the smallest singular value of each that is signal in a float32 gradient.
        noise: what rounding or noise added to maps with the same inputs, by the first one's name; empty for a float32
            gradient. Subtraction leaves it as it was.
    """

    gradients: dict[str, Tensor]
    smallest: Mapping[str, float]
    noise: Mapping[str, NoiseFloor]

    @classmethod
    def of(cls, observed: ObservedUpdate) -> Remainder:
        """Take the gradients of an update, from which nothing has been subtracted."""
        layer = observed.target.layers[0]
        parts = [*observed.inputs.maps, layer.query, layer.key, layer.value, layer.attention_output]
        parts += [layer.feed_forward_in] if observed.hidden_states else []
        gradients = {part.weight: observed.gradient[part.weight].double() for part in parts}
        floor = observed.space.floor
        rounded = floor > CLEAN
        relative = max(ROUNDING, 0.0 if rounded else 2 * floor)
        smallest = {name: relative * _largest(t) for name, t in gradients.items()}
        noise = {}
        groups = [observed.inputs.maps, (layer.attention_output,), *([parts[-1:]] if observed.hidden_states else [])]
        for group in groups if rounded else ():
            noise[group[0].weight] = observed.noise_floor(group)
        return cls(gradients, smallest, noise)

    @property
    def norm(self) -> float:
        """The Euclidean norm of all gradients together."""
        return float(torch.stack([tensor.square().sum() for tensor in self.gradients.values()]).sum().sqrt())

    def row_space(self, parts: Sequence[Projection]) -> Subspace:
        """Return the row space of maps with the same inputs, cut at the noise floor of the original gradient."""
        gradients = [part.weight_in(self.gradients) for part in parts]
        if self.noise:
            return signal_space(self.noise[parts[0].weight].spectrum(torch.cat(gradients)))
        smallest = max(
            2 * self.smallest[part.weight] / max(_largest(own), 1e-300)
            for part, own in zip(parts, gradients, strict=True)
        )
        return row_space(gradients, max(ROUNDING, smallest))

    def whitened(self, part: Projection) -> Callable[[Tensor], Tensor]:
        """Return the scaling by which a map's noise has the same size in all entries."""
        noise = self.noise.get(part.weight)
        return (lambda own: own / noise.rows / noise.columns) if noise else (lambda own: own)

    def decomposed(self, part: Projection) -> tuple[Tensor, Tensor, Tensor]:
        """Return singular vectors and values of a map's gradient as far as they are signal, whitened."""
        own = part.weight_in(self.gradients)
        if self.noise:
            spectrum = self.noise[part.weight].spectrum(own)
            rank = spectrum.rank
            return spectrum.left[:, :rank], spectrum.values[:rank] * spectrum.floor.edge, spectrum.right[:rank]
        left, values, right = torch.linalg.svd(own, full_matrices=False)
        keep = values > 2 * self.smallest[part.weight]
        return left[:, keep], values[keep], right[keep]

    def subtract(self, target: Target, sentence: Sentence) -> int | None:
        """Subtract a sentence's gradient with the label and weight that fit, and return the label; None if none fits.

        A part A of a sum G of parts with independent rows and columns satisfies A G⁺ A = A. With A = c · g for the
        sentence's gradient g, g G⁺ g = g / c: this gives the weight c = 1 / B, and holds for the correct sentence only.
        """
        part = target.layers[0].attention_output
        left, values, right = self.decomposed(part)
        whitened = self.whitened(part)
        best: tuple[float, int, float, dict[str, Tensor]] | None = None
        for label in range(target.num_labels if target.task == "classification" else 1):
            names = list(self.gradients)
            found = {n: t.double() for n, t in batch_gradient(target, [sentence], [label], names).items()}
            own = whitened(part.weight_in(found))
            again = ((own @ right.T) / values) @ (left.T @ own)
            weight = float(own.square().sum() / (again * own).sum())
            misfit = float((again * weight - own).norm() / own.norm())
            if weight > 0 and (best is None or misfit < best[0]):
                best = misfit, label, weight, found
        if best is None or best[0] > MISFIT:
            return None
        _, label, weight, found = best
        share = _as_fraction(weight)
        for name in self.gradients:
            self.gradients[name] -= found[name] * share
        return label


def _largest(matrix: Tensor) -> float:
    """Return the largest singular value."""
    small = matrix @ matrix.T if len(matrix) < matrix.shape[1] else matrix.T @ matrix
    return float(torch.linalg.eigvalsh(small)[-1].clamp(min=0.0).sqrt())


def _as_fraction(weight: float) -> float:
    """Return the ratio of a count to a batch size that a weight is close to; else the weight, as clipping scales it."""
    for copies in range(1, 5):
        ratio = copies / max(1, round(copies / weight))
        if abs(ratio - weight) < CLOSE * weight:
            return ratio
    return weight
