"""Reading a batch under dropout: rows, sentences, proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.decoding import ACCEPTED
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.attacks.sieve.rows import Rows, RowSearch
from gradleak.attacks.sieve.sentences import Assignment, assign
from gradleak.attacks.sieve.subspace import Subspace, rank
from gradleak.attacks.sieve.verify import certain, unexplained
from gradleak.targets import Target

CLEARLY_APART = 1e-2
"""A row's distance from its sentence, as a share of that to the next one, in a proof; rounding gives 1e-6."""

EXPLAINED = 1e-5
"""Share of the gradient that may stay unexplained in a proof: rounding gives 1e-7, a missing row 1e-2."""


@dataclass(frozen=True)
class MaskedReading:
    """What was read under dropout.

    Attributes:
        sentences: token ids of each sentence, in order of position.
        missing: how many rows were not found.
        rate: share of entries that were dropped.
        loss: share of the gradient that the rows do not explain.
        proven: whether rows and sentences are certain.
    """

    sentences: tuple[tuple[int, ...], ...]
    missing: int
    rate: float
    loss: float
    proven: bool


def read_masked(
    target: Target, inputs: Inputs, gradient: Mapping[str, Tensor], space: Subspace, words: Tensor
) -> MaskedReading:
    """Read a batch whose client had dropout switched on."""
    key = target.layers[0].key
    shares_keys = key in inputs.maps
    count = space.rank - rank(key.weight_in(gradient)) if shares_keys else None
    search = RowSearch(inputs, space, target.special_tokens, words, count or None, target.max_length)
    rows = search.run()
    if not len(rows) or not rows.at(0):
        return MaskedReading((), space.rank, 0.0, 1.0, False)
    vectors = rows.vectors(inputs)
    starts = len(rows.at(0))
    total = count or starts
    if total > 1 and shares_keys:
        found = assign(key.weight_in(gradient), vectors, rows.positions, total)
    else:
        found = in_one_sentence(rows)
    loss = max(unexplained(projection.weight_in(gradient), vectors) for projection in inputs.maps)
    dropped = 1 - float(torch.stack(rows.masks).double().mean())
    sentences = tuple(_filled(target, search, sentence) for sentence in found.sentences if sentence)
    proven = (
        target.task == "classification"  # a language model's last tokens leave no row
        and len(rows) == space.rank
        and loss < EXPLAINED
        and found.complete
        and found.spread < CLEARLY_APART
        and count == starts
        and all(map(target_fits(target), sentences))
        and certain(space, dropped, len(words), ACCEPTED)
    )
    return MaskedReading(sentences, space.rank - len(rows), dropped, loss, proven)


def _filled(target: Target, search: RowSearch, sentence: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of a sentence, with a guess at each place that no row was found for."""
    before, after = target.special_tokens
    tokens = {search.rows.positions[row]: search.rows.tokens[row] for row in sentence}
    last = max(tokens)
    if after and tokens[last] != after[-1]:
        last = search.likely_end(last)
        tokens[last] = after[-1]
    for position in range(last):
        if position not in tokens:
            tokens[position] = before[position] if position < len(before) else search.likely(position)
    return tuple(tokens[position] for position in sorted(tokens))


def in_one_sentence(rows: Rows) -> Assignment:
    """Return all rows as one sentence: one row for each position."""
    first = {rows.positions[row]: row for row in reversed(range(len(rows)))}
    chosen = tuple(first[position] for position in sorted(first))
    complete = len(chosen) == len(rows) and sorted(first) == list(range(len(rows)))
    return Assignment((chosen,), 0.0, complete)


def target_fits(target: Target) -> Callable[[tuple[int, ...]], bool]:
    """Return a test of whether a sentence begins and ends as the tokenizer has it, and nowhere else."""
    before, after = target.special_tokens

    def fits(sentence: tuple[int, ...]) -> bool:
        inner = sentence[len(before) : len(sentence) - len(after)]
        return sentence == (*before, *inner, *after) and bool(inner) and not set(inner) & {*before, *after}

    return fits
