"""Gradient analysis and token adjustment (EDR, section 4.3).

A token's row of the word embeddings' gradient depends on where it stands and on what stands around it. Rows that differ
from the observed ones point to what is out of place; a sentence whose rows all agree is right, and is left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.assignment.scoring import Misfits, Scores, Search
from gradleak.attacks.edr.token_fusion import Words
from gradleak.exchange import Deadline
from gradleak.search import block_shifts, in_parts
from gradleak.search.word_moves import in_order, insert_block, reverse_blocks, swap_blocks

# Rows that differ by less than this share of their length agree: in a wrong sentence every row differs by more.
AGREES = 0.01
# So many of the worst tokens are tried at once.
TOGETHER = 3


class Text(NamedTuple):
    """A solution of a puzzle `[places]`, and its distance."""

    solution: Tensor
    loss: float


def open_places(misfits: Tensor, solution: Tensor, sentences: Tensor) -> Tensor:
    """Tell which places `[places]` belong to sentences that are not yet right.

    Tokens that other sentences hold, too, say nothing: their row is the sum of all.
    """
    is_open = torch.ones_like(sentences, dtype=torch.bool)
    for number in torch.unique(sentences).tolist():
        inside = sentences == number
        own = inside & ~torch.isin(solution, solution[~inside])
        if bool(own.any()) and bool((misfits[own] <= AGREES).all()):
            is_open[inside] = False
    return is_open


def adjust(
    words: Words,
    text: Text,
    rounds: int,
    sequences: int,
    enough: float,
    *,
    placed: bool = False,
    deadline: Deadline | None = None,
) -> Search[Text]:
    """Move tokens that do not fit, the worst first, as long as it brings the gradient nearer.

    Args:
        words: what is known of words and sentences.
        text: where to start.
        rounds: how many moves there are at most.
        sequences: how many sentences the batch has.
        enough: the distance below which two gradients are the same but for rounding.
        placed: whether tokens stand at their positions already, and only their sentences are in doubt.
        deadline: when to end at the latest; the distance of what there was no time for is infinite.
    """
    deadline = deadline or Deadline()
    for _ in range(rounds):
        if text.loss <= enough or deadline.passed:
            break
        misfits = yield Misfits(text.solution)
        is_open = open_places(misfits, text.solution, words.sentences)
        crossings = [crossed(text.solution, words.sentences, is_open)] if placed else []
        nearer = yield from _nearer(words, text, misfits, is_open, sequences, crossings, deadline)
        if nearer is None:
            break
        text = nearer
    return text


def _nearer(
    words: Words,
    text: Text,
    misfits: Tensor,
    is_open: Tensor,
    sequences: int,
    first: Sequence[Tensor],
    deadline: Deadline,
) -> Search[Text | None]:
    """Return the best text with one of the worst tokens elsewhere; if none helps, with a run of tokens moved.

    Those to be tried first, if there are any, are given.
    """
    worst_first = misfits.argsort(descending=True)
    flagged = worst_first[(is_open & (misfits > AGREES))[worst_first]].tolist()
    groups = (flagged[start : start + TOGETHER] for start in range(0, len(flagged), TOGETHER))
    single = (torch.cat([neighbours(text.solution, place, words, is_open) for place in group]) for group in groups)
    numbers = torch.unique(words.sentences[is_open]).tolist()
    runs = (part for number in numbers for part in _runs_moved(text.solution, words.sentences == number))
    for tried in itertools.chain(filter(len, first), single, runs):
        if deadline.passed:
            break
        different = torch.unique(tried, dim=0)
        scores = yield Scores(different, only_one(words.sentences[is_open], sequences))
        if float(scores.min()) < text.loss:
            return Text(different[scores.argmin()], float(scores.min()))
    return None


def _runs_moved(solution: Tensor, inside: Tensor) -> Iterator[Tensor]:
    """Yield all solutions in which several tokens in a row are elsewhere in their sentence, and the present one."""
    places = inside.nonzero().flatten()
    for orders in in_parts(itertools.chain([torch.arange(len(places))[None]], block_shifts(len(places)))):
        changed = solution.repeat(len(orders), 1)
        changed[:, places] = solution[places][orders]
        yield changed


def crossed(solution: Tensor, sentences: Tensor, is_open: Tensor) -> Tensor:
    """Return all solutions in which two open sentences exchange the tokens at one position, or all from there on."""
    places = torch.arange(len(sentences))
    position = places - torch.searchsorted(sentences, sentences)
    at = torch.full(
        (int(sentences.max()) + 1, int(position.max()) + 1), -1
    )  # the place of each position, if it has one
    at[sentences, position] = places
    pairs = (position[:, None] == position) & (sentences[:, None] < sentences) & is_open[:, None] & is_open
    one, other = pairs.nonzero().T[..., None]  # [2, pairs, 1]
    partner = at[
        torch.where(sentences == sentences[one], sentences[other], sentences[one]), position
    ]  # [pairs, places]
    concerned = ((sentences == sentences[one]) | (sentences == sentences[other])) & (partner >= 0)
    orders = [
        torch.where(concerned & exchanged, partner, places)
        for exchanged in (position == position[one], position >= position[one])
    ]
    return solution[torch.cat(orders)]


def neighbours(solution: Tensor, place: int, words: Words, is_open: Tensor) -> Tensor:
    """Return all solutions `[count, places]` that move the token at a place, alone or with the pieces that follow it.

    It changes places with any other, goes elsewhere in its sentence, or turns what lies between around; and if the text
    holds it elsewhere, too, it becomes any other token.
    """
    goals = is_open.nonzero().flatten()
    here = torch.full_like(goals, place)
    tokens = solution.expand(len(goals), -1)
    within = words.sentences[goals] == words.sentences[place]
    found = []
    for ranks in (torch.arange(len(solution)).expand_as(tokens), words.ranks(tokens, here)):
        one, other = (ranks.gather(-1, at[:, None])[:, 0] for at in (here, goals))
        found.append(in_order(tokens, swap_blocks(ranks, one, other)))
        found += [in_order(tokens, move(ranks, one, other))[within] for move in (insert_block, reverse_blocks)]
    if int((solution == solution[place]).sum()) > 1:
        kinds = torch.arange(len(words.pieces))
        others = solution.repeat(len(kinds), 1)
        others[:, place] = kinds
        found.append(others[kinds != solution[place]])
    return torch.cat(found)


def only_one(sentences: Tensor, sequences: int) -> int | None:
    """Return the sentence of a batch that all places belong to, if they belong to one alone."""
    numbers = torch.unique(sentences).tolist()
    return numbers[0] if len(numbers) == 1 and numbers[0] < sequences > 1 else None
