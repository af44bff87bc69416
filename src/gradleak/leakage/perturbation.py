"""Detect and measure what changed an update: noise, pruning, rounding.

Used by `examine`, by the label and length estimates of this room, and by the attacks that adapt to a defense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gradleak.exchange import Protocol
from gradleak.matching import vanishing_parameters
from gradleak.targets import Projection, Target

NOISE_SHOWS = 1e-3
"""Key biases above this fraction of the query biases are noise, not rounding."""

PRUNED = 0.1
"""Fraction of zeros above which the weight matrices of a gradient count as pruned. Unpruned ones may have rows of
zeros, of ReLU units that never fired."""

MAPS_PRUNED = 0.05
"""The same for single maps that have no empty rows or columns, such as queries, keys and values: an unpruned gradient
has next to no zeros there."""

FEW, SAMPLED = 0.5, 2**16
"""Of unrounded entries hardly two have the same size; so many entries are compared."""


def noise_level(target: Target, gradient: Mapping[str, Tensor]) -> float | None:
    """Return the standard deviation of noise added to a gradient; 0 if there is none, None if it cannot be measured.

    Softmax is invariant to key biases: their gradient is zero for every text, and whatever was sent there is noise.
    Biases of keys that are rotated by their position (RoPE) say nothing.
    """
    if target.family.rotary:
        return None
    keys = _attention_biases(target, gradient, "key")
    queries = _attention_biases(target, gradient, "query")
    if keys is None or queries is None:
        return None
    level = float(keys.double().square().mean().sqrt())
    return level if level > NOISE_SHOWS * float(queries.double().square().mean().sqrt()) else 0.0


def noise_deviation(target: Target, gradient: Mapping[str, Tensor], matrix: Projection) -> float:
    """Return the standard deviation of noise; without key biases, estimated from a map's median singular value.

    Args:
        target: the model.
        gradient: gradients by name.
        matrix: the map whose singular values are used; its gradient was sent.
    """
    level = noise_level(target, gradient)
    if level is not None:
        return level
    own = matrix.weight_in(gradient).double()
    wide, narrow = max(own.shape), min(own.shape)
    edge = float(torch.linalg.svdvals(own).median()) * marchenko_pastur_edge(narrow / wide)
    return edge / (wide**0.5 + narrow**0.5)


@lru_cache
def marchenko_pastur_edge(ratio: float) -> float:
    """Return the largest singular value of pure noise in units of its median (Marchenko & Pastur 1967).

    Args:
        ratio: of the matrix's smaller side to its larger.
    """
    low, high = (1 - ratio**0.5) ** 2, (1 + ratio**0.5) ** 2
    at = np.linspace(low, high, 20_001)[1:]
    density = np.sqrt(np.maximum((high - at) * (at - low), 0)) / at
    total = np.cumsum(density)
    return float((high / at[np.searchsorted(total, total[-1] / 2)]) ** 0.5)


def zero_fraction(target: Target, gradient: Mapping[str, Tensor]) -> float:
    """Return the fraction of exact zeros in the weight matrices' gradients, embedding tables excepted."""
    matrices = weight_matrices(target, gradient).values()
    entries = sum(matrix.numel() for matrix in matrices)
    return sum(int((matrix == 0).sum()) for matrix in matrices) / entries if entries else 0.0


def weight_matrices(target: Target, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of weight matrices by name, without those that have zeros anyway.

    These are embedding tables, and the A of adapters in their first round.
    """
    others = target.embedding_parameters | vanishing_parameters(target)
    return {name: t for name, t in gradient.items() if t.ndim == 2 and name not in others}


def looks_rounded(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Return whether entries have few distinct sizes, as after half precision or subtraction of rounded weights."""
    matrices = weight_matrices(target, gradient).values()
    if not matrices:
        return False
    entries = max(matrices, key=Tensor.numel).flatten()[:SAMPLED].abs()
    entries = entries[entries > 0]
    return len(entries) > 0 and len(torch.unique(entries)) < FEW * len(entries)


def looks_pruned(
    target: Target, gradient: Mapping[str, Tensor], maps: Sequence[Projection] = (), limit: float = PRUNED
) -> bool:
    """Return whether entries of a gradient were set to zero.

    Args:
        target: the model.
        gradient: gradients by name.
        maps: look at these maps alone; all weight matrices if empty.
        limit: the fraction of zeros above which a gradient counts as pruned; `MAPS_PRUNED` for attention maps, which
            have no rows that are empty by themselves.
    """
    chosen = {part.weight: gradient[part.weight] for part in maps} if maps else gradient
    return zero_fraction(target, chosen) > limit


def looks_noisy(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Return whether noise was added to a gradient."""
    return bool(noise_level(target, gradient))


def is_rounded(target: Target, gradient: Mapping[str, Tensor], protocol: Protocol) -> bool:
    """Return whether an update was rounded, as stated or seen: small entries may then be zero without pruning."""
    stated = protocol.training is not None or protocol.precision != "fp32" or protocol.send != "fp32"
    return stated or looks_rounded(target, gradient)


def is_perturbed(target: Target, gradient: Mapping[str, Tensor], protocol: Protocol) -> bool:
    """Return whether an update is other than one float32 gradient: rounded, noisy, or the change after local steps."""
    return is_rounded(target, gradient, protocol) or looks_noisy(target, gradient)


def _attention_biases(target: Target, gradient: Mapping[str, Tensor], kind: str) -> Tensor | None:
    projections = [getattr(layer, kind) for layer in target.layers]
    found = [p.bias_in(gradient) for p in projections if p.bias in gradient]
    return torch.cat(found) if found else None
