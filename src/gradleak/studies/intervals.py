"""Bootstrap intervals of many groups at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1_000
MANY = 2_000  # sentences from which on the bootstrap's interval and the normal one cannot be told apart


def bootstrap(scores: NDArray[np.float64], counts: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
    """Return mean and 95 % interval of every score in every group; the resamples come from the seed.

    Groups of one size are resampled alike, all at once: a resample is a vector of weights, and the means of all groups
    under all resamples are one matrix product.

    Args:
        scores: [sentences, scores], group after group.
        counts: [groups], how many sentences each group has.
        seed: seed of the resamples.
    """
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    result = np.full((len(counts), scores.shape[1], 3), np.nan)  # [groups, scores, (mean, low, high)]
    for size in np.unique(counts[counts > 0]):
        groups = np.flatnonzero(counts == size)
        values = scores[starts[groups, None] + np.arange(size)]  # [groups, sentences, scores]
        result[groups, :, 0] = values.mean(axis=1)
        result[groups, :, 1:] = _interval(values, int(size), seed)
    return result


def _interval(values: NDArray[np.float64], size: int, seed: int) -> NDArray[np.float64]:
    if size > MANY:
        half = 1.96 * values.std(axis=1) / np.sqrt(size)
        return np.stack([values.mean(axis=1) - half, values.mean(axis=1) + half], axis=-1)
    drawn = np.random.default_rng(seed).integers(0, size, (RESAMPLES, size))
    flat = (drawn + size * np.arange(RESAMPLES)[:, None]).ravel()
    weights = np.bincount(flat, minlength=RESAMPLES * size).reshape(RESAMPLES, size) / size
    rank = int(0.025 * RESAMPLES)
    ends = np.empty((*values.shape[::2], 2))
    for part in range(0, len(values), 1_000):  # [groups, scores, resamples] of all groups may not fit
        means = np.einsum("gns,rn->gsr", values[part : part + 1_000], weights, optimize=True)
        means.partition((rank, RESAMPLES - 1 - rank), axis=-1)
        ends[part : part + 1_000] = means[..., [rank, RESAMPLES - 1 - rank]]
    return ends
