"""Solutions of several puzzles judged by their gradients side by side.

A search over one puzzle is a generator: it yields a question, is sent the answer, and returns what it found. Searches
over many puzzles run in step, and what they ask at the same time is answered by one call of the engine: on a GPU a call
for thirty victims takes hardly longer than a call for one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from gradleak.assignment.problem import Puzzle
from gradleak.matching import Candidates, Matcher, row_gradients
from gradleak.search import Remembered

T = TypeVar("T")

# Calls for up to so many solutions come in a few sizes only: a GPU's are recorded once, and then replayed. Larger ones
# take longer to compute than to launch.
RECORDED = 512


@dataclass(frozen=True)
class Scores:
    """Asks for the distances `[count]` of solutions.

    Attributes:
        solutions: `[count, places]`.
        sequence: the only sequence of the batch in which they differ, if there is one.
    """

    solutions: Tensor
    sequence: int | None = None


@dataclass(frozen=True)
class Misfits:
    """Asks for each place by how much its token's row differs from the observed one, as a share `[places]`."""

    solution: Tensor


Question = Scores | Misfits
Search = Generator[Question, Tensor, T]


class Judge:
    """Compares solutions of several puzzles with the observed gradients.

    Solutions of all puzzles are as long as the longest; what stands after a puzzle's own places means nothing.

    Args:
        puzzles: what is to be solved; all have as many sequences.
        labels: the sequences' classes `[puzzles, sequences]`.
        gradients: the observed gradients.
        matcher: the distance to them.
    """

    def __init__(
        self, puzzles: Sequence[Puzzle], labels: Tensor, gradients: Sequence[Mapping[str, Tensor]], matcher: Matcher
    ) -> None:
        self.target, self.sequences = puzzles[0].target, puzzles[0].sequences
        self._matcher: Callable[[], Matcher] = lambda: matcher
        self.length = max(puzzle.places for puzzle in puzzles)
        self._labels = labels
        self._tokens = max(puzzle.slots.ids.shape[-1] for puzzle in puzzles)
        self._has_gaps = any(self.target.tokenizer.pad_token_id in puzzle.vocabulary for puzzle in puzzles)
        self._frames = torch.stack([self._frame(puzzle) for puzzle in puzzles])
        self._where = torch.stack([self._places(puzzle) for puzzle in puzzles])
        # Fillers of states are one more kind of token.
        kinds = 1 + max(puzzle.kinds for puzzle in puzzles)
        self._vocabulary = torch.stack([padded(puzzle.vocabulary, kinds) for puzzle in puzzles])
        (self._table,) = self.target.word_parameters
        rows = self._vocabulary.to(gradients[0][self._table].device)
        self._rows = torch.stack([own[self._table][ids] for own, ids in zip(gradients, rows, strict=True)])
        self._held: Tensor | None = None
        self._some: tuple[list[int], Judge] | None = None
        self._score = Remembered(self._scores_of_rows)

    def of(self, numbers: Sequence[int]) -> Judge:
        """Return a judge of some of the puzzles; the same as last time, if they are the same."""
        numbers = list(numbers)
        if numbers == list(range(len(self._frames))):
            return self
        if self._some is None or self._some[0] != numbers:
            some = copy(self)
            some._matcher = cache(lambda: self._matcher().select(numbers))  # copies, which misfits do not need
            some._labels, some._frames, some._where = self._labels[numbers], self._frames[numbers], self._where[numbers]
            some._vocabulary, some._rows = self._vocabulary[numbers], self._rows[numbers]
            some._held = None if self._held is None else self._held[numbers]
            some._some, some._score = None, Remembered(some._scores_of_rows)
            self._some = numbers, some
        return self._some[1]

    def with_fixed_sequences(self, solutions: Tensor, sequences: Tensor) -> Judge:
        """Return a judge of solutions that differ from these `[puzzles, places]` in one sequence each `[puzzles]`."""
        base = self.candidates(solutions[:, None])
        others = torch.arange(self.sequences).expand(len(sequences), -1)
        order = (others != sequences[:, None]).to(torch.uint8).argsort(dim=1, stable=True)  # that sequence comes first
        held = copy(self)
        matcher = self._matcher().with_fixed_sequences(_chosen_sequences(base, order), 0)
        held._matcher, held._held, held._some = lambda: matcher, sequences[:, None], None
        return held

    def distances(self, solutions: Tensor) -> Tensor:
        """Return the distances `[puzzles, count]` of solutions `[puzzles, count, places]`, on the CPU."""
        count = solutions.shape[1]
        if self.target.device.type == "cuda" and len(solutions) * count <= RECORDED:
            solutions = solutions[:, torch.arange(_power_of_two(count)) % count]
        candidates = self.candidates(solutions)
        if self._held is not None:
            candidates = _chosen_sequences(candidates, self._held)
        return self._matcher()(candidates)[:, :count].cpu()

    def misfits(self, solutions: Tensor) -> Tensor:
        """Return for each place by how much its token's row differs from the observed one `[puzzles, places]`."""
        candidates = self.candidates(solutions[:, None])
        rows = self._vocabulary.to(candidates.mask.device)
        own = row_gradients(self.target, candidates, self._table, rows)[:, 0]
        share = (own - self._rows).norm(dim=2) / self._rows.norm(dim=2).clamp(min=1e-30)
        return share.cpu().gather(1, solutions)

    def answer(self, asked: Mapping[int, Question]) -> dict[int, Tensor]:
        """Answer questions about some of the puzzles, by their numbers."""
        answers: dict[int, Tensor] = {}
        unfit = {number: question.solution for number, question in asked.items() if isinstance(question, Misfits)}
        if unfit:
            shares = self.of(list(unfit)).misfits(torch.stack([padded(own, self.length) for own in unfit.values()]))
            answers |= {number: row[: len(unfit[number])] for number, row in zip(unfit, shares, strict=True)}
        scores = {number: question for number, question in asked.items() if isinstance(question, Scores)}
        if scores:
            rows = [self._as_rows(number, question) for number, question in scores.items()]
            found = torch.split(self._score(torch.cat(rows)), [len(own) for own in rows])
            answers |= zip(scores, found, strict=True)
        return answers

    def candidates(self, solutions: Tensor) -> Candidates:
        """Return solutions `[puzzles, count, places]` as candidates."""
        victims, count, _ = solutions.shape
        tokens = self._vocabulary.gather(1, solutions.flatten(1)).view_as(solutions)
        frames, where = (own[:, None].expand(-1, count, -1) for own in (self._frames, self._where))
        ids = frames.scatter(2, where, tokens)[..., :-1].reshape(victims, count, self.sequences, self._tokens)
        if self._has_gaps:  # what is empty goes to the end
            empty = ids == self.target.tokenizer.pad_token_id
            ids = ids.gather(3, empty.to(torch.uint8).argsort(dim=3, stable=True))
        ids = ids.to(self.target.device)
        labels = self._labels.to(ids.device)[:, None].expand(-1, count, -1)
        return Candidates(ids, ids != self.target.tokenizer.pad_token_id, labels)

    def _frame(self, puzzle: Puzzle) -> Tensor:
        """Return the special tokens of all sequences in a row, and one more place for what stands in none."""
        ids = puzzle.slots.ids[0, 0].cpu()
        pad = self.target.tokenizer.pad_token_id
        wide = torch.nn.functional.pad(ids, (0, self._tokens - ids.shape[1]), value=pad)
        return torch.cat([wide.flatten(), torch.tensor([pad])])

    def _places(self, puzzle: Puzzle) -> Tensor:
        """Return where in the frame each place is; places of no sequence are the last."""
        sequence, token = puzzle.slots.free[0, 0].cpu().nonzero().T
        inside = sequence * self._tokens + token
        outside = torch.full((self.length - len(inside),), self.sequences * self._tokens)
        return torch.cat([inside, outside])

    def _as_rows(self, number: int, question: Scores) -> Tensor:
        """Return solutions as rows `[count, 2 + places]` that also tell the puzzle, and what they differ in."""
        solutions = padded(question.solutions, self.length)
        about = torch.tensor([number, -1 if question.sequence is None else question.sequence])
        return torch.cat([about.expand(len(solutions), -1), solutions], dim=1)

    def _scores_of_rows(self, rows: Tensor) -> Tensor:
        """Return the distances of solutions of any puzzles; those of puzzles with about as many of them in one call."""
        about, which, counts = torch.unique(rows[:, :2], dim=0, return_inverse=True, return_counts=True)
        size = counts.double().log2().ceil()  # the same up to the next power of two
        kinds, kind = torch.unique(torch.stack([size, (about[:, 1] >= 0).double()], dim=1), dim=0, return_inverse=True)
        found = torch.empty(len(rows), dtype=torch.float64)
        for number in range(len(kinds)):
            chosen = (kind == number)[which]
            found[chosen] = self._scores_together(rows[chosen])
        return found

    def _scores_together(self, rows: Tensor) -> Tensor:
        about, which, counts = torch.unique(rows[:, :2], dim=0, return_inverse=True, return_counts=True)
        order = which.argsort(stable=True)
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(order).scatter(0, order, torch.arange(len(rows)) - first[which[order]])
        taken = first[:, None] + torch.arange(int(counts.max())).minimum(counts[:, None] - 1)  # some again, to fill up
        solutions = rows[order[taken], 2:]  # [puzzles, count, places]
        judge = self.of(about[:, 0].tolist())
        if int(about[0, 1]) >= 0:
            judge = judge.with_fixed_sequences(solutions[:, 0], about[:, 1])
        return judge.distances(solutions)[which, rank]


def side_by_side(judge: Judge, searches: Mapping[int, Search[T]]) -> dict[int, T]:
    """Run one search for each of some puzzles, all in step; return what they found by the puzzles' numbers."""
    found: dict[int, T] = {}
    asked = {}
    for number, search in searches.items():
        try:
            asked[number] = next(search)
        except StopIteration as end:
            found[number] = end.value
    while asked:
        for number, answer in judge.answer(asked).items():
            try:
                asked[number] = searches[number].send(answer)
            except StopIteration as end:
                found[number] = end.value
                del asked[number]
    return found


def padded(tensor: Tensor, length: int) -> Tensor:
    """Return a tensor `[…, entries]` with zeros at its end."""
    return torch.nn.functional.pad(tensor, (0, length - tensor.shape[-1]))


def _power_of_two(count: int) -> int:
    """Return the next power of two."""
    return 1 << (count - 1).bit_length()


def _chosen_sequences(candidates: Candidates, numbers: Tensor) -> Candidates:
    """Return for each puzzle some of its sequences `[puzzles, chosen]`."""
    numbers = numbers.to(candidates.mask.device)
    index = numbers[:, None, :, None].expand(-1, candidates.shape[1], -1, candidates.mask.shape[3])
    inputs, mask = candidates.inputs.gather(2, index), candidates.mask.gather(2, index)
    return Candidates(inputs, mask, candidates.labels.gather(2, index[..., 0]))
