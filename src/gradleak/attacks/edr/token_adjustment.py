"""Gradient analysis and token adjustment (EDR, section 4.3).

A token's row of the word embeddings' gradient depends on its position and on its context. Rows that differ from the
observed ones point to misplaced tokens; a sentence whose rows all agree is right, and is not changed any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.assignment.scoring import RowErrorQuery, ScoreQuery, SearchRoutine
from gradleak.attacks.edr.proposals import TokenLayout
from gradleak.exchange import Deadline
from gradleak.search import block_shifts, in_parts
from gradleak.search.word_moves import in_order, insert_block, reverse_blocks, swap_blocks

AGREES = 0.01  # rows with a smaller relative error agree: in a wrong sentence every row has a larger one
WORST = 3  # so many of the worst tokens are tried in one call


class ScoredSolution(NamedTuple):
    """A solution of an assignment problem `[places]`, and its distance."""

    solution: Tensor
    loss: float


@dataclass(frozen=True, kw_only=True)
class Adjustment:
    """How solutions of one problem are adjusted.

    Attributes:
        layout: the words and sentences of the problem.
        sequences: the batch size.
        rounds: the most moves.
        tolerance: the distance below which two gradients are the same but for rounding.
        crossing: whether to try first to exchange tokens between sentences: for solutions whose tokens are at their
            positions already, with only their sentences in doubt.
        deadline: when to end at the latest; solutions that were not scored in time have an infinite distance.
    """

    layout: TokenLayout
    sequences: int
    rounds: int
    tolerance: float
    crossing: bool = False
    deadline: Deadline = field(default_factory=Deadline)


def open_places(row_errors: Tensor, solution: Tensor, sentences: Tensor) -> Tensor:
    """Tell which places `[places]` belong to sentences that are not right yet.

    Tokens that other sentences hold, too, are ignored: their row is the sum over all sentences.
    """
    is_open = torch.ones_like(sentences, dtype=torch.bool)
    for number in torch.unique(sentences).tolist():
        inside = sentences == number
        own = inside & ~torch.isin(solution, solution[~inside])
        if bool(own.any()) and bool((row_errors[own] <= AGREES).all()):
            is_open[inside] = False
    return is_open


def adjust(start: ScoredSolution, how: Adjustment) -> SearchRoutine[ScoredSolution]:
    """Move tokens with wrong rows, the worst first, as long as that brings the gradient nearer.

    The paper does not say how a token is moved: `neighbours`, and where none helps, runs of tokens are tried.
    """
    text = start
    for _ in range(how.rounds):
        if text.loss <= how.tolerance or how.deadline.passed:
            break
        row_errors = yield RowErrorQuery(text.solution)
        nearer = yield from _nearer(text, row_errors, how)
        if nearer is None:
            break
        text = nearer
    return text


def _nearer(text: ScoredSolution, row_errors: Tensor, how: Adjustment) -> SearchRoutine[ScoredSolution | None]:
    """Return the best solution of the first set of changes that contains a better one; None if no set does."""
    sentences = how.layout.sentences
    is_open = open_places(row_errors, text.solution, sentences)
    for tried in _changes(text.solution, row_errors, is_open, how):
        if how.deadline.passed:
            break
        different = torch.unique(tried, dim=0)
        scores = yield ScoreQuery(different, only_sentence(sentences[is_open], how.sequences))
        if float(scores.min()) < text.loss:
            return ScoredSolution(different[scores.argmin()], float(scores.min()))
    return None


def _changes(solution: Tensor, row_errors: Tensor, is_open: Tensor, how: Adjustment) -> Iterator[Tensor]:
    """Yield sets of changed solutions: exchanges between sentences, the worst tokens moved, then runs of tokens."""
    layout = how.layout
    if how.crossing:
        yield from filter(len, [crossed(solution, layout.sentences, is_open)])
    worst_first = row_errors.argsort(descending=True)
    flagged = worst_first[(is_open & (row_errors > AGREES))[worst_first]].tolist()
    for group in (flagged[start : start + WORST] for start in range(0, len(flagged), WORST)):
        yield torch.cat([neighbours(solution, place, layout, is_open) for place in group])
    numbers = torch.unique(layout.sentences[is_open]).tolist()
    yield from itertools.chain.from_iterable(_runs_moved(solution, layout.sentences == number) for number in numbers)


def _runs_moved(solution: Tensor, inside: Tensor) -> Iterator[Tensor]:
    """Yield all solutions with a run of tokens moved within their sentence, and the present one."""
    places = inside.nonzero().flatten()
    for orders in in_parts(itertools.chain([torch.arange(len(places))[None]], block_shifts(len(places)))):
        changed = solution.repeat(len(orders), 1)
        changed[:, places] = solution[places][orders]
        yield changed


def crossed(solution: Tensor, sentences: Tensor, is_open: Tensor) -> Tensor:
    """Return all solutions in which two open sentences exchange the tokens at one position, or all from there on."""
    places = torch.arange(len(sentences))
    position = places - torch.searchsorted(sentences, sentences)
    at = torch.full((int(sentences.max()) + 1, int(position.max()) + 1), -1)  # the place of each position, or −1
    at[sentences, position] = places
    pairs = (position[:, None] == position) & (sentences[:, None] < sentences) & is_open[:, None] & is_open
    one, other = pairs.nonzero().T[..., None]  # [2, pairs, 1]
    counterpart = torch.where(sentences == sentences[one], sentences[other], sentences[one])
    partner = at[counterpart, position]  # [pairs, places]
    concerned = ((sentences == sentences[one]) | (sentences == sentences[other])) & (partner >= 0)
    orders = [
        torch.where(concerned & exchanged, partner, places)
        for exchanged in (position == position[one], position >= position[one])
    ]
    return solution[torch.cat(orders)]


def neighbours(solution: Tensor, place: int, layout: TokenLayout, is_open: Tensor) -> Tensor:
    """Return all solutions `[count, places]` that move the token at a place, alone or with the pieces that follow it.

    It is swapped with any other token, inserted elsewhere in its sentence, or the run in between is reversed. A token
    that occurs several times may also become any other token.
    """
    goals = is_open.nonzero().flatten()
    here = torch.full_like(goals, place)
    tokens = solution.expand(len(goals), -1)
    within = layout.sentences[goals] == layout.sentences[place]
    found = []
    for ranks in (torch.arange(len(solution)).expand_as(tokens), layout.ranks(tokens, here)):
        one, other = (ranks.gather(-1, at[:, None])[:, 0] for at in (here, goals))
        found.append(in_order(tokens, swap_blocks(ranks, one, other)))
        found += [in_order(tokens, move(ranks, one, other))[within] for move in (insert_block, reverse_blocks)]
    if int((solution == solution[place]).sum()) > 1:
        kinds = torch.arange(len(layout.pieces))
        others = solution.repeat(len(kinds), 1)
        others[:, place] = kinds
        found.append(others[kinds != solution[place]])
    return torch.cat(found)


def only_sentence(sentences: Tensor, sequences: int) -> int | None:
    """Return the sentence of a batch that all places belong to, if there is only one."""
    numbers = torch.unique(sentences).tolist()
    return numbers[0] if len(numbers) == 1 and numbers[0] < sequences > 1 else None
