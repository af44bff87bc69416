"""The (token, position) pairs whose x(t, p) lies in the row space: the candidates of every sentence search."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.row_space import CLEAN, Subspace

IN_SPAN = 2e-3
"""A pair is possible if less than this fraction of x(t, p) lies outside the row space."""

MOST_OUTSIDE = 0.01
"""The fraction grows with the error of a float32 gradient's row space, up to this."""

LEAST_ABSENT, MOST_PRESENT = 0.12, 0.3
"""Words that did not occur leave at least the first fraction outside a rounded row space, mostly 0.4, and words that
did at most the second: 0.01 after a cast to bfloat16, 0.06 in int8, 0.12 after one step of AdamW."""

MARGIN, WIDE_MARGIN = 1.5, 4.0
"""The best pair of a position leaves at most so many times as much outside as the best pair of any word, and the pairs
of sentences so many times as much."""

MOST_PAIRS = 6000
"""With more pairs than this the row space is not one of text, and tables of all pairs would fill memory."""

WINDOW = 64
"""How many positions are compared with all words at a time."""

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
    found, tolerance, last = _words_of_rounded(inputs, space, words, longest)
    wide = min(WIDE_MARGIN / MARGIN * tolerance, MOST_PRESENT)
    return _pairs_within(inputs, space, found, last + 1, (wide, MOST_PAIRS))


def _words_of_rounded(inputs: LayerInputs, space: Subspace, words: Tensor, longest: int) -> tuple[Tensor, float, int]:
    """Return the words that a rounded row space holds, the fraction of x(t, p) that may lie outside, the last position.

    How far rounding moves a word depends on the word, and the error of the row space is that of its weakest direction.
    But between the words that occurred and the others is a gap: the largest step in their distances, each word at its
    best position.
    """
    best, nearest = torch.zeros(len(words), device=words.device), []
    for places in torch.split(torch.arange(longest, device=words.device), WINDOW):
        inside = inputs.captured_energy(space.basis, words, places)
        best = torch.maximum(best, inside.amax(dim=1))
        nearest.append(inside.amax(dim=0))
        outside = (1 - best).clamp(min=IN_SPAN**2).sqrt()
        ranked, order = outside.sort()
        steps = ranked[1:] / ranked[:-1]
        steps[(ranked[1:] < LEAST_ABSENT) | (ranked[:-1] > MOST_PRESENT)] = 0.0
        least = int(steps.argmax())
        tolerance = min(MARGIN * float(ranked[least]), MOST_PRESENT)
        if inside[:, -1].max() < 1 - tolerance**2:  # the longest sentence ends before
            break
    last = int((torch.cat(nearest) > 1 - tolerance**2).nonzero()[-1])
    return words[order[: least + 1]], tolerance, last


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
