"""The (token, position) pairs whose x(t, p) lies in the row space: the candidates of every sentence search."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.row_space import CLEAN, Subspace

IN_SPAN = 2e-3
"""A pair is possible if less than this fraction of x(t, p) lies outside the row space."""

MOST_OUTSIDE, MOST_OUTSIDE_ROUNDED = 0.01, 0.25
"""The fraction grows with the error of the row space, up to these: in a float32 gradient, and in a rounded one, where
words that did not occur leave 0.8 outside."""

MOST_PAIRS = 6000
"""With more pairs than this the row space is not one of text, and tables of all pairs would fill memory."""

ROUNDED_PAIRS, FEW_PAIRS = 5, 300
"""In a rounded row space the tolerance is halved until there are no more pairs than this many for each dimension, or
than a few: its error is that of the weakest directions, and most pairs lie closer."""

SCANNED = 2**16
"""How many pairs are tested in float64 at a time."""


def possible_pairs(inputs: LayerInputs, space: Subspace, words: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return tokens and positions of all pairs in a row space, up to the first position that has none.

    Empty if there are more pairs than a text can have: the row space says nothing about tokens then.

    Args:
        inputs: the tables of x(t, p).
        space: the row space.
        words: ids to test.
        longest: the number of positions to test.
    """
    if space.floor < CLEAN:
        tolerance = max(IN_SPAN, min(3 * space.error, MOST_OUTSIDE))
        return _pairs_within(inputs, space, words, longest, (tolerance, MOST_PAIRS))
    tolerance = max(IN_SPAN, min(3 * space.error, MOST_OUTSIDE_ROUNDED))
    most = max(FEW_PAIRS, ROUNDED_PAIRS * space.rank)
    tokens, positions = words[:0], words[:0]
    while not len(tokens) and tolerance >= IN_SPAN:
        tokens, positions = _pairs_within(inputs, space, words, longest, (tolerance, most))
        tolerance /= 2
    return tokens, positions


def _pairs_within(
    inputs: LayerInputs, space: Subspace, words: Tensor, longest: int, limits: tuple[float, int]
) -> tuple[Tensor, Tensor]:
    """Return the pairs of which less than a tolerance lies outside a row space; none if they are more than a number."""
    tolerance, most = limits
    nearest = 1 - max(MOST_OUTSIDE, tolerance) ** 2  # in the scan, which rounds
    tokens, positions, total = [words[:0]], [words[:0]], 0
    for first in range(0, longest, 16):
        places = torch.arange(first, min(first + 16, longest), device=words.device)
        near = inputs.captured_energy(space.basis, words, places) > nearest
        word, place = near.nonzero(as_tuple=True)
        for token, position in zip(torch.split(words[word], SCANNED), torch.split(places[place], SCANNED), strict=True):
            inside = space.outside(inputs(token, position)) < tolerance
            tokens.append(token[inside])
            positions.append(position[inside])
            total += int(inside.sum())
            if total > most:
                return words[:0], words[:0]
        if len(set(places[place].tolist()) & set(torch.cat(positions).tolist())) < len(places):
            break
    token, position = torch.cat(tokens), torch.cat(positions)
    there = set(position.tolist())
    last = next(p for p in range(longest + 1) if p not in there)
    keep = position < last
    return token[keep], position[keep]
