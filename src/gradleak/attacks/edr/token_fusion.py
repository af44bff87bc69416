"""TokenFusion: whole words out of a set of tokens, some of which are pieces of words (EDR, section 4.1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.search.word_moves import BLOCK_MOVES, in_order, ranks_of, shuffle_blocks
from gradleak.targets import Target

Lexeme = tuple[int, ...]

# A word of more pieces is rare, and of many pieces there are too many combinations to try.
MOST_PIECES = 5
MOST_LEXEMES = 2_000


def pieces_of_words(target: Target, tokens: Tensor) -> Tensor:
    """Tell which tokens `[…]` continue a word, such as `##ing`."""
    vocabulary: dict[str, int] = target.tokenizer.get_vocab()
    # ## stands before a piece; Ġ and ▁ before a root.
    mark = next((mark for mark in ("##", "Ġ", "▁") if any(word.startswith(mark) for word in vocabulary)), None)
    words = target.tokenizer.convert_ids_to_tokens(tokens.flatten().tolist())
    return torch.tensor([_continues(word, mark) for word in words]).view(tokens.shape)


def fuse(target: Target, tokens: Sequence[int], deadline: Deadline | None = None) -> list[Lexeme]:
    """Return all words that can be put together from a set of tokens, roots alone among them.

    A root and pieces make a word if its spelling is encoded into just these tokens again. Longest match first, as
    WordPiece has it, cuts the beginning of a word in the same way as the whole: what does not come back need not be
    made longer.

    Args:
        target: whose tokenizer is meant.
        tokens: ids of the tokens, each once.
        deadline: when no more words are tried.
    """
    deadline = deadline or Deadline()
    continues = pieces_of_words(target, torch.tensor(tokens)).tolist()
    roots = [token for token, piece in zip(tokens, continues, strict=True) if not piece]
    pieces = [token for token, piece in zip(tokens, continues, strict=True) if piece]
    found: list[Lexeme] = [(root,) for root in roots]
    longest: list[Lexeme] = [(root,) for root in roots if root not in target.tokenizer.all_special_ids]
    while longest and pieces and len(longest[0]) <= MOST_PIECES and len(found) < MOST_LEXEMES:
        tried = ((*lexeme, piece) for lexeme in longest for piece in pieces if piece not in lexeme)
        in_time = itertools.takewhile(lambda _: not deadline.passed, tried)
        longest = [lexeme for lexeme in in_time if _comes_back(target.tokenizer, lexeme)]
        found = found + longest
    return found


def draw_lexemes(
    lexemes: Sequence[Lexeme], tokens: Sequence[int], room: int, generator: torch.Generator
) -> list[Lexeme]:
    """Draw words, in random order, that use every token at least once and have `room` tokens together.

    Each piece goes into a random word that can be made of it and of other tokens not yet used; where no such word is
    left it stands alone. The rest of the room is filled with words drawn again: a text may hold a token several times.

    Args:
        lexemes: the words to choose from.
        tokens: ids of the tokens, each once; no more than `room`.
        room: how many tokens there are, counting those that occur several times.
        generator: source of randomness, on the CPU.
    """
    unused = set(tokens)
    drawn: list[Lexeme] = []
    for index in torch.randperm(len(lexemes), generator=generator).tolist():
        if len(lexemes[index]) > 1 and unused.issuperset(lexemes[index]):
            drawn.append(lexemes[index])
            unused.difference_update(lexemes[index])
    drawn += [(token,) for token in tokens if token in unused]
    missing = room - len(tokens)
    drawn += [(tokens[index],) for index in torch.randint(len(tokens), (missing,), generator=generator).tolist()]
    return [drawn[index] for index in torch.randperm(len(drawn), generator=generator).tolist()]


@dataclass(frozen=True)
class Words:
    """What a puzzle's tokens and places say about words.

    Attributes:
        pieces: which kinds of tokens continue a word `[kinds]`.
        sentences: the number of the sentence that each place belongs to, in order `[places]`.
        repeated: whether there are more places than kinds of tokens.
    """

    pieces: Tensor
    sentences: Tensor
    repeated: bool

    def part(self, places: Tensor) -> Words:
        """Return the same for some of the places."""
        _, sentences = torch.unique(self.sentences[places], return_inverse=True)
        return Words(self.pieces, sentences, self.repeated)

    def ranks(self, tokens: Tensor, cut: Tensor) -> Tensor:
        """Return the number of each token's word `[…, places]`; words end with their sentence and where one is cut."""
        return _ranks(~self.pieces[tokens], self.sentences[1:] != self.sentences[:-1], cut)


class LexemeMoves:
    """Proposals for annealing: a word changes places with another, goes elsewhere, or a run of words is reversed.

    As long as it is hot the words are shuffled instead, with a probability of the heat (EDR, appendix A: early
    iterations favour random operations). Inserting and reversing stay within a sentence; swapping need not. A place
    inside a word cuts it there, so that its pieces try other roots. Where tokens occur several times, one of those may
    become another token.

    Problems differ in their tokens and places. States of all are as long as the longest; after its own places a problem
    has the token `filler`, which never moves.

    Args:
        words: each problem's.
    """

    def __init__(self, words: Sequence[Words]) -> None:
        self.numbers = [6 + len(own.sentences) for own in words]  # move, from, to, what it becomes, shuffle, and how
        self.length = max(len(own.sentences) for own in words)
        self.filler = max(len(own.pieces) for own in words)
        self._places = torch.tensor([len(own.sentences) for own in words])[:, None, None]
        self._kinds = torch.tensor([len(own.pieces) for own in words])[:, None, None]
        self._moves = torch.tensor([4 if own.repeated else 3 for own in words])[:, None, None]
        self._pieces = _table([own.pieces for own in words], self.filler + 1)  # [problems, kinds]
        sentences = [own.sentences for own in words]
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
        drawn = numbers[..., 5:]  # fewer than places, if the longest problem has left
        shuffled_ranks = shuffle_blocks(ranks.clamp(max=drawn.shape[-1] - 1), drawn)
        keys = torch.where(self._inside, shuffled_ranks, ranks)  # what is outside comes last
        return torch.where((shuffled < heat)[..., None], in_order(tokens, keys), proposals)

    def of(self, problems: Sequence[int]) -> LexemeMoves:
        """Return moves for some of the problems; states keep their length, and the filler is the same."""
        some = copy(self)
        some.numbers = [self.numbers[problem] for problem in problems]
        for name in ("_places", "_kinds", "_moves", "_pieces", "_ends", "_first", "_size", "_inside"):
            setattr(some, name, getattr(self, name)[problems])
        return some

    def _within_sentence(self, places: Tensor, numbers: Tensor) -> Tensor:
        """Return random places of the same sentences as places `[…]`, by uniform numbers `[…]`."""
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
    """Return rows of different lengths as one tensor, with zeros after them."""
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return entries of each problem's row `[problems, entries]` for an index `[problems, …]`."""
    return table.gather(1, index.flatten(1)).view_as(index)


def _below(limits: Tensor, numbers: Tensor) -> Tensor:
    """Return whole numbers from 0 up to limits, which uniform numbers stand for; rounding must not reach the limit."""
    return torch.minimum((numbers * limits).long(), limits - 1)


def _continues(word: str, mark: str | None) -> bool:
    if mark is None:
        return False
    if mark == "##":
        return word.startswith(mark) and word != mark
    return word.isalpha() and not word.startswith(mark)  # a comma, too, has no mark, and is no piece of a word


def _comes_back(tokenizer: Any, lexeme: Lexeme) -> bool:  # noqa: ANN401
    """Tell whether a word's spelling is encoded into the same tokens."""
    return tuple(tokenizer(tokenizer.decode(list(lexeme)), add_special_tokens=False)["input_ids"]) == lexeme
