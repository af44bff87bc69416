"""What an update shows of how it was made: noise, pruning, sign compression."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.targets import Target

# Key biases that are larger than this share of the query biases are not rounding, but noise.
NOISE_SHOWS = 1e-3
# No gradient of a transformer's weight matrices has so many zeros by itself.
PRUNING_SHOWS = 0.1
# Of entries that are not rounded, hardly two are of one size; so many are looked at.
FEW, SAMPLED = 0.5, 2**16


def noise_level(target: Target, gradient: Mapping[str, Tensor]) -> float | None:
    """Return the standard deviation of noise that was added to a gradient; 0 if there is none, None if it is unseen.

    Softmax does not feel a key's bias: its gradient is zero, whatever the text. What stands there is the noise alone.
    """
    keys = _attention_biases(target, gradient, "key")
    queries = _attention_biases(target, gradient, "query")
    if keys is None or queries is None:
        return None
    level = float(keys.double().square().mean().sqrt())
    return level if level > NOISE_SHOWS * float(queries.double().square().mean().sqrt()) else 0.0


def share_of_zeros(target: Target, gradient: Mapping[str, Tensor]) -> float:
    """Return how much of the weight matrices' gradient is exactly zero; embeddings, which have zeros anyway, aside."""
    matrices = [t for name, t in gradient.items() if t.ndim == 2 and name not in target.embedding_parameters]
    entries = sum(matrix.numel() for matrix in matrices)
    return sum(int((matrix == 0).sum()) for matrix in matrices) / entries if entries else 0.0


def looks_rounded(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Whether entries have few distinct sizes: those of half precision, or of differences between rounded weights."""
    matrices = [t for name, t in gradient.items() if t.ndim == 2 and name not in target.embedding_parameters]
    if not matrices:
        return False
    entries = max(matrices, key=Tensor.numel).flatten()[:SAMPLED].abs()
    entries = entries[entries > 0]
    return len(entries) > 0 and len(torch.unique(entries)) < FEW * len(entries)


def looks_pruned(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Whether small entries were taken out of a gradient."""
    return share_of_zeros(target, gradient) > PRUNING_SHOWS


def looks_noisy(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Whether noise was added to a gradient."""
    return bool(noise_level(target, gradient))


def _attention_biases(target: Target, gradient: Mapping[str, Tensor], kind: str) -> Tensor | None:
    projections = [getattr(layer, kind) for layer in target.layers]
    found = [p.bias_in(gradient) for p in projections if p.bias in gradient]
    return torch.cat(found) if found else None
