"""Moves of whole words, as proposals for annealing (EDR, section 4.2 and appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.assignment.problem import AssignmentProblem
from gradleak.attacks.edr.token_fusion import pieces_of_words
from gradleak.search.word_moves import BLOCK_MOVES, in_order, ranks_of, shuffle_blocks


@dataclass(frozen=True)
class TokenLayout:
    """Which tokens of a problem are pieces of words, and which of its places belong to one sentence.

    Attributes:
        pieces: True for tokens that continue a word `[kinds]`.
        sentences: the sentence of each place, in order `[places]`.
        repeated: whether there are more places than different tokens.
    """

    pieces: Tensor
    sentences: Tensor
    repeated: bool

    @classmethod
    def of(cls, problem: AssignmentProblem) -> TokenLayout:
        """Return the layout of a problem."""
        inside = problem.slots.free[0, 0].nonzero()[:, 0].cpu()
        outside = torch.full((problem.places - len(inside),), problem.sequences)  # a place of no sentence
        pieces = pieces_of_words(problem.target, problem.vocabulary)
        return cls(pieces, torch.cat([inside, outside]), problem.places > problem.kinds)

    def select(self, places: Tensor) -> TokenLayout:
        """Return the layout of some of the places, given as a mask `[places]`."""
        _, sentences = torch.unique(self.sentences[places], return_inverse=True)
        return TokenLayout(self.pieces, sentences, self.repeated)

    def ranks(self, tokens: Tensor, cut: Tensor) -> Tensor:
        """Return the number of each token's word `[…, places]`; words end with their sentence, and before `cut`."""
        return _ranks(~self.pieces[tokens], self.sentences[1:] != self.sentences[:-1], cut)


class WordMoves:
    """Proposals for annealing: swap two words, insert a word elsewhere, or reverse a run of words.

    With a probability that equals the heat, all words are shuffled instead (appendix A: early iterations favour random
    operations). Insertions and reversals stay within a sentence; swaps need not. A chosen place inside a word splits
    the word there, and its pieces can join other roots.

    The paper's moves never change how often a token occurs. Here a repeated token may become another one.

    Problems differ in their tokens and places. States of all problems are padded to the longest with the token
    `filler`, which never moves.

    Args:
        layouts: one for each problem.
    """

    def __init__(self, layouts: Sequence[TokenLayout]) -> None:
        # Numbers for the move, from where, to where, the new token, whether to shuffle, and the keys of the shuffle.
        self.numbers = [6 + len(own.sentences) for own in layouts]
        self.length = max(len(own.sentences) for own in layouts)
        self.filler = max(len(own.pieces) for own in layouts)
        self._places = torch.tensor([len(own.sentences) for own in layouts])[:, None, None]
        self._kinds = torch.tensor([len(own.pieces) for own in layouts])[:, None, None]
        self._moves = torch.tensor([4 if own.repeated else 3 for own in layouts])[:, None, None]
        self._pieces = _table([own.pieces for own in layouts], self.filler + 1)  # [problems, kinds]
        sentences = [own.sentences for own in layouts]
        self._ends = _table([own[1:] != own[:-1] for own in sentences], self.length - 1)[:, None, None]
        self._first = _table([torch.searchsorted(own, own) for own in sentences], self.length)
        self._size = _table([torch.bincount(own)[own] for own in sentences], self.length)
        self._inside = torch.arange(self.length) < self._places[..., None]  # [problems, 1, 1, places]

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[problems, starts, tries, places]` for states `[problems, starts, places]`."""
        tokens = states[:, :, None].expand(*numbers.shape[:3], self.length)
        which, source, goal, new, shuffled = numbers[..., :5].unbind(-1)
        move, taken = _below(self._moves, which), _below(self._places, source)
        to = torch.where(move == 0, _below(self._places, goal), self._within_sentence(taken, goal))
        ranks = _ranks(~_look_up(self._pieces, tokens), self._ends, taken)
        one, other = (ranks.gather(-1, place[..., None])[..., 0] for place in (taken, to))
        orders = torch.stack([change(ranks, one, other) for change in BLOCK_MOVES])  # [moves, …, places]
        proposals = in_order(tokens, orders.gather(0, move.clamp(max=2)[None, ..., None].expand(1, *ranks.shape))[0])
        if bool((self._moves == 4).any()):
            replaced = self._replaced(tokens, taken, _below(self._kinds, new))
            proposals = torch.where((move == 3)[..., None], replaced, proposals)
        drawn = numbers[..., 5:]  # fewer than places, once the longest problem is retired
        shuffled_ranks = shuffle_blocks(ranks.clamp(max=drawn.shape[-1] - 1), drawn)
        keys = torch.where(self._inside, shuffled_ranks, ranks)  # the filler comes last
        return torch.where((shuffled < heat)[..., None], in_order(tokens, keys), proposals)

    def select(self, problems: Sequence[int]) -> WordMoves:
        """Return the moves of some of the problems; the length of states and the filler stay the same."""
        some = copy(self)
        some.numbers = [self.numbers[problem] for problem in problems]
        for name in ("_places", "_kinds", "_moves", "_pieces", "_ends", "_first", "_size", "_inside"):
            setattr(some, name, getattr(self, name)[problems])
        return some

    def _within_sentence(self, places: Tensor, numbers: Tensor) -> Tensor:
        """Return random places in the same sentences as places `[…]`, from uniform numbers `[…]`."""
        return _look_up(self._first, places) + _below(_look_up(self._size, places), numbers)

    def _replaced(self, tokens: Tensor, place: Tensor, new: Tensor) -> Tensor:
        """Put new tokens at places `[…]` whose token occurs elsewhere, too."""
        place = place[..., None]
        repeated = (tokens == tokens.gather(-1, place)).sum(dim=-1, keepdim=True) > 1
        return torch.where(repeated, tokens.scatter(-1, place, new[..., None]), tokens)


def _ranks(begins: Tensor, ends: Tensor, cut: Tensor) -> Tensor:
    """Return the number of each token's word `[…, places]`.

    Args:
        begins: whether a token begins a word `[…, places]`.
        ends: whether a sentence ends after a place `[…, places − 1]`.
        cut: a place where a word begins in any case `[…]`.
    """
    begins = begins.clone()
    begins[..., 0] = True
    begins[..., 1:] |= ends
    return ranks_of(begins.scatter(-1, cut[..., None], True))


def _table(rows: Sequence[Tensor], width: int) -> Tensor:
    """Return rows of different lengths as one tensor, padded with zeros."""
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return entries of each problem's row `[problems, entries]` for an index `[problems, …]`."""
    return table.gather(1, index.flatten(1)).view_as(index)


def _below(limits: Tensor, numbers: Tensor) -> Tensor:
    """Map uniform numbers in [0, 1) to integers in [0, limit); rounding must not reach the limit."""
    return torch.minimum((numbers * limits).long(), limits - 1)
