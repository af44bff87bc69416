"""Bootstrap intervals of many groups at once; used for the rows of a summary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1_000
MANY = 2_000  # with more batches the bootstrap interval agrees with the normal one, which is used instead


def bootstrap(
    scores: NDArray[np.float64],
    counts: NDArray[np.int64],
    batches: NDArray[np.int64] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> NDArray[np.float64]:
    """Return mean and 95 % interval of every score in every group.

    Whole batches are drawn, because the sentences of a batch are attacked together and their scores are correlated. The
    mean of a resample is taken over the sentences of its batches, which may differ in size.

    Groups with equal numbers of batches share their resamples: a resample is a vector of weights, and the sums of all
    groups under all resamples are one matrix product.

    Args:
        scores: [sentences, scores], sorted by group.
        counts: [groups], number of sentences of each group.
        batches: [sentences], the number of each sentence's batch; sentences of one batch are adjacent. None if every
            sentence is a batch.
        seed: seed of the resamples.
        resamples: number of resamples.

    Returns:
        [groups, scores, 3]: mean, low and high; NaN for groups without sentences.
    """
    sums, sizes, counts = _by_batch(scores, counts, batches)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    result = np.full((len(counts), scores.shape[1], 3), np.nan)  # [groups, scores, (mean, low, high)]
    for number in np.unique(counts[counts > 0]):
        groups = np.flatnonzero(counts == number)
        places = starts[groups, None] + np.arange(number)  # [groups, batches]
        values, weights = sums[places], sizes[places]
        result[groups, :, 0] = values.sum(axis=1) / weights.sum(axis=1)[:, None]
        result[groups, :, 1:] = _interval(values, weights, seed, resamples)
    return result


def _by_batch(
    scores: NDArray[np.float64], counts: NDArray[np.int64], batches: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the sums [batches, scores] and sizes [batches] of all batches, and the number of batches per group."""
    if batches is None or not len(batches):
        return scores, np.ones(len(scores)), counts
    groups = np.repeat(np.arange(len(counts)), counts)  # [sentences]
    first = np.flatnonzero(np.r_[True, (np.diff(batches) != 0) | (np.diff(groups) != 0)])
    sizes = np.diff(np.r_[first, len(scores)]).astype(np.float64)
    return np.add.reduceat(scores, first, axis=0), sizes, np.bincount(groups[first], minlength=len(counts))


def _interval(sums: NDArray[np.float64], sizes: NDArray[np.float64], seed: int, resamples: int) -> NDArray[np.float64]:
    """Return low and high [groups, scores, 2] of groups with equal numbers of batches.

    Args:
        sums: [groups, batches, scores], over the sentences of each batch.
        sizes: [groups, batches].
        seed: seed of the resamples.
        resamples: number of resamples.
    """
    number = sums.shape[1]
    if number > MANY:
        total = sizes.sum(axis=1)[:, None]
        mean = sums.sum(axis=1) / total
        half = 1.96 * np.sqrt(((sums - mean[:, None] * sizes[..., None]) ** 2).sum(axis=1)) / total
        return np.stack([mean - half, mean + half], axis=-1)
    drawn = np.random.default_rng(seed).integers(0, number, (resamples, number))
    flat = (drawn + number * np.arange(resamples)[:, None]).ravel()
    weights = np.bincount(flat, minlength=resamples * number).reshape(resamples, number).astype(np.float64)
    rank = int(0.025 * resamples)
    ends = np.empty((*sums.shape[::2], 2))
    for part in range(0, len(sums), 1_000):  # [groups, scores, resamples] of all groups may not fit into memory
        chunk = slice(part, part + 1_000)
        means = np.einsum("gns,rn->gsr", sums[chunk], weights, optimize=True)
        means /= (sizes[chunk] @ weights.T)[:, None]
        means.partition((rank, resamples - 1 - rank), axis=-1)
        ends[chunk] = means[..., [rank, resamples - 1 - rank]]
    return ends
