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

GAP = 1.5
"""Between the two is a gap of at least this factor, unless the row space is known poorly."""

BULK, BELOW_BULK = 512, 0.9
"""Words that did not occur are so many that the nearest of them leave about the same outside: a word that leaves less
than this fraction of what the one of this rank leaves may have occurred, too, though no gap separates it."""

NEARER = 0.7
"""The best word of a position of a text leaves less than this fraction of what the best of a later position does."""

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
    best, nearest = _scanned(inputs, space, words, longest)
    most = _most_outside(best)
    if most is not None:
        tolerance = min(MARGIN * most, MOST_PRESENT)
        last = int((nearest < tolerance).nonzero()[-1])
        wide = min(WIDE_MARGIN * most, MOST_PRESENT)
        return _pairs_within(inputs, space, words[best <= most], last + 1, (wide, MOST_PAIRS))
    found = words[best < BELOW_BULK * best.sort().values[min(BULK, len(words) // 2)]]
    if len(found) > inputs.width:
        return words[:0], words[:0]
    places = torch.arange(_end_of_longest(nearest), device=words.device)
    outside = 1 - inputs.captured_energy(space.basis, found, places)
    kept = outside.flatten().topk(min(MOST_PAIRS, outside.numel()), largest=False).indices.sort().values
    return found[kept // len(places)], places[kept % len(places)]


def _scanned(inputs: LayerInputs, space: Subspace, words: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return what words leave outside a row space, each at its best position, and positions, each with its best word.

    Positions are scanned until some hold no word.
    """
    least, nearest = torch.ones(len(words), device=words.device), torch.ones(0, device=words.device)
    for places in torch.split(torch.arange(longest, device=words.device), WINDOW):
        outside = (1 - inputs.captured_energy(space.basis, words, places)).clamp(min=IN_SPAN**2).sqrt()
        least = torch.minimum(least, outside.amin(dim=1))
        nearest = torch.cat([nearest, outside.amin(dim=0)])
        most = _most_outside(least)
        if most is None and _end_of_longest(nearest) < len(nearest):
            break
        if most is not None and nearest[-1] > min(MARGIN * most, MOST_PRESENT):
            break
    return least, nearest


def _most_outside(outside: Tensor) -> float | None:
    """Return what words that occurred leave outside at most, given what all words leave; None if there is no gap.

    How far rounding moves a word depends on the word, and the error of the row space is that of its weakest direction.
    But between the words that occurred and the others is a gap: the largest step in their distances, each word at its
    best position.
    """
    ranked = outside.sort().values
    steps = ranked[1:] / ranked[:-1]
    steps[(ranked[1:] < LEAST_ABSENT) | (ranked[:-1] > MOST_PRESENT)] = 0.0
    return float(ranked[steps.argmax()]) if len(steps) and steps.max() > GAP else None


def _end_of_longest(nearest: Tensor) -> int:
    """Return the number of positions of the longest sentence: some word is clearly nearer there than later on."""
    held = (nearest < NEARER * nearest.max()).nonzero()
    return int(held[-1]) + 1 if len(held) else 0


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
