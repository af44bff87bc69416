"""Accuracy and Matthews correlation of a classifier: the utility that a defense costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradleak.errors import GradleakError


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Return the share of correct predictions, from 0 to 1."""
    predicted, true = _checked(predictions, labels)
    return float((predicted == true).mean())


def matthews_correlation(predictions: Sequence[int], labels: Sequence[int]) -> float:
    """Return Matthews' correlation for two or more classes, from -1 to 1.

    With s examples of which c are right, p_k predictions of class k and t_k examples of class k:
    (c s - sum_k p_k t_k) / sqrt((s^2 - sum_k p_k^2) (s^2 - sum_k t_k^2)), Gorodkin 2004. It is
    undefined, and 0.0 here, if all predictions or all labels are of one class.
    """
    predicted, true = _checked(predictions, labels)
    _, codes = np.unique(np.concatenate([predicted, true]), return_inverse=True)
    size = len(true)
    classes = int(codes.max()) + 1
    # Python integers, because squares of large counts overflow.
    guesses = [int(n) for n in np.bincount(codes[:size], minlength=classes)]
    truths = [int(n) for n in np.bincount(codes[size:], minlength=classes)]
    right = int((predicted == true).sum())
    covariance = right * size - sum(p * t for p, t in zip(guesses, truths, strict=True))
    spread = (size**2 - sum(p * p for p in guesses)) * (size**2 - sum(t * t for t in truths))
    return covariance / math.sqrt(spread) if spread else 0.0


def _checked(predictions: Sequence[int], labels: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    predicted = np.asarray(predictions, dtype=np.int64)
    true = np.asarray(labels, dtype=np.int64)
    if predicted.shape != true.shape or predicted.ndim != 1:
        raise GradleakError(f"{predicted.size} predictions do not fit {true.size} labels: one each is needed")
    if not predicted.size:
        raise GradleakError("there is nothing to score: no predictions were given")
    return predicted, true
