"""Gradient analysis and token adjustment (EDR, section 4.3).

A token's row of the word embeddings' gradient depends on where it stands and on what stands around it. Rows that differ
from the observed ones point to what is out of place; a sentence whose rows all agree is right, and is left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gradleak.attacks.lexemes import LexemeMoves
from gradleak.attacks.puzzle import Puzzle
from gradleak.matching import Matcher, autograd_gradients
from gradleak.search import Remembered, all_block_shifts, all_replacements
from gradleak.search.blocks import in_order, insert_block, reverse_blocks, swap_blocks

# Rows that differ by less than this share of their length agree: in a wrong sentence every row differs by more.
AGREES = 0.01
# So many of the worst tokens are tried at once.
TOGETHER = 3


class Text(NamedTuple):
    """A solution of a puzzle `[places]`, and its distance."""

    solution: Tensor
    loss: float


@dataclass
class Judge:
    """Scores solutions of a puzzle by their gradient; each only once.

    Attributes:
        puzzle: what is to be solved.
        labels: the sentences' classes `[sequences]`.
        matcher: the distance to the observed gradient.
        gradient: the observed gradient itself.
        enough: the distance below which two gradients are the same but for rounding.
    """

    puzzle: Puzzle
    labels: Tensor
    matcher: Matcher
    gradient: Mapping[str, Tensor]
    enough: float
    score: Remembered = field(init=False)
    _held: tuple[int, Matcher] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.score = Remembered(self._distances)

    def misfits(self, solution: Tensor) -> Tensor:
        """Return for each place by how much its token's row differs from the observed one, as a share `[places]`."""
        (table,) = self.puzzle.target.word_parameters
        candidate = self.puzzle.candidates(solution[None], self.labels)
        own = autograd_gradients(self.puzzle.target, candidate, [table])[table][0, 0]
        ids = self.puzzle.vocabulary.to(own.device)
        seen = self.gradient[table][ids]
        share = (own[ids] - seen).norm(dim=1) / seen.norm(dim=1).clamp(min=1e-30)
        return share.cpu()[solution]

    def hold(self, solution: Tensor, sequence: int | None) -> None:
        """From now on score solutions that differ from this one in a single sequence; None for any solutions."""
        if sequence is None or not sequence < self.puzzle.sequences > 1:
            self._held = None
        elif self._held is None or self._held[0] != sequence:
            base = self.puzzle.candidates(solution[None], self.labels)
            self._held = sequence, self.matcher.holding(base, sequence)

    def _distances(self, solutions: Tensor) -> Tensor:
        count = len(solutions)
        if self.puzzle.target.device.type == "cuda":  # a few sizes only: each is recorded once, and then replayed
            solutions = solutions[torch.arange(1 << (count - 1).bit_length()) % count]
        candidates = self.puzzle.candidates(solutions, self.labels)
        if self._held is None:
            return self.matcher(candidates)[0, :count]
        sequence, matcher = self._held
        changed = candidates.sequences(torch.tensor([sequence], device=candidates.mask.device))
        return matcher(changed)[0, :count]


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


def adjust(judge: Judge, moves: LexemeMoves, text: Text, rounds: int) -> Text:
    """Move tokens that do not fit, the worst first, as long as it brings the gradient nearer.

    Args:
        judge: scores solutions.
        moves: knows words and sentences.
        text: where to start.
        rounds: how many moves there are at most.
    """
    for _ in range(rounds):
        if text.loss <= judge.enough:
            break
        misfits = judge.misfits(text.solution)
        is_open = open_places(misfits, text.solution, moves.sentences)
        judge.hold(text.solution, only_one(moves.sentences[is_open]))
        nearer = _nearer(judge, moves, text, misfits, is_open)
        if nearer is None:
            break
        text = nearer
    judge.hold(text.solution, None)
    return text


def _nearer(judge: Judge, moves: LexemeMoves, text: Text, misfits: Tensor, is_open: Tensor) -> Text | None:
    """Return the best text with one of the worst tokens elsewhere; if none helps, with a run of tokens moved."""
    worst_first = misfits.argsort(descending=True)
    flagged = worst_first[(is_open & (misfits > AGREES))[worst_first]].tolist()
    groups = (flagged[start : start + TOGETHER] for start in range(0, len(flagged), TOGETHER))
    single = (torch.cat([neighbours(text.solution, place, moves, is_open) for place in group]) for group in groups)
    numbers = torch.unique(moves.sentences[is_open]).tolist()
    runs = (_runs_moved(text.solution, moves.sentences == number) for number in numbers)
    for tried in itertools.chain(single, runs):
        different = torch.unique(tried, dim=0)
        scores = judge.score(different)
        if float(scores.min()) < text.loss:
            return Text(different[scores.argmin()], float(scores.min()))
    return None


def _runs_moved(solution: Tensor, inside: Tensor) -> Tensor:
    """Return all solutions in which several tokens in a row are elsewhere in their sentence, and the present one."""
    places = inside.nonzero().flatten()
    orders = torch.cat([torch.arange(len(places))[None], all_block_shifts(len(places))])
    changed = solution.repeat(len(orders), 1)
    changed[:, places] = solution[places][orders]
    return changed


def neighbours(solution: Tensor, place: int, moves: LexemeMoves, is_open: Tensor) -> Tensor:
    """Return all solutions `[count, places]` that move the token at a place, alone or with the pieces that follow it.

    It changes places with any other, goes elsewhere in its sentence, or turns what lies between around; and if the text
    holds it elsewhere, too, it becomes any other token.
    """
    goals = is_open.nonzero().flatten()
    here = torch.full_like(goals, place)
    tokens = solution.expand(len(goals), -1)
    within = moves.sentences[goals] == moves.sentences[place]
    found = []
    for ranks in (torch.arange(len(solution)).expand_as(tokens), moves.ranks(tokens, here)):
        one, other = (ranks.gather(-1, at[:, None])[:, 0] for at in (here, goals))
        found.append(in_order(tokens, swap_blocks(ranks, one, other)))
        found += [in_order(tokens, move(ranks, one, other))[within] for move in (insert_block, reverse_blocks)]
    others = all_replacements(solution, len(moves.pieces))
    found.append(others[others[:, place] != solution[place]])
    return torch.cat(found)


def only_one(sentences: Tensor) -> int | None:
    """Return the sentence that all places belong to, if they belong to one alone."""
    numbers = torch.unique(sentences).tolist()
    return numbers[0] if len(numbers) == 1 else None
