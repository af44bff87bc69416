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
    most = MOST_OUTSIDE if space.floor < CLEAN else MOST_OUTSIDE_ROUNDED
    tolerance = max(IN_SPAN, min(3 * space.error, most))
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
            if total > MOST_PAIRS:
                return words[:0], words[:0]
        if len(set(places[place].tolist()) & set(torch.cat(positions).tolist())) < len(places):
            break
    token, position = torch.cat(tokens), torch.cat(positions)
    there = set(position.tolist())
    last = next(p for p in range(longest + 1) if p not in there)
    keep = position < last
    return token[keep], position[keep]
