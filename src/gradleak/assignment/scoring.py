"""Score solutions of several assignment problems by their gradients, in few calls of the matcher. Used by EDR.

A search over one problem is a coroutine: it yields a query, is sent the answer, and returns what it found. Searches
over many problems run in lockstep, and their simultaneous queries are answered by one call of the matcher: on a GPU a
call for thirty victims takes hardly longer than a call for one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from gradleak.assignment.problem import AssignmentProblem
from gradleak.matching import Candidates, Matcher, row_gradients
from gradleak.search import ScoreCache

T = TypeVar("T")

# Calls for up to so many solutions are padded to a few sizes: a GPU's calls are recorded once, and then replayed.
# Larger calls take longer to compute than to launch.
RECORDED = 512


@dataclass(frozen=True)
class ScoreQuery:
    """Ask for the distances `[count]` of solutions.

    Attributes:
        solutions: `[count, places]`.
        sequence: the only sequence of the batch in which they differ, if there is one.
    """

    solutions: Tensor
    sequence: int | None = None


@dataclass(frozen=True)
class RowErrorQuery:
    """Ask for the relative error of each place's row of the word embeddings' gradient `[places]`."""

    solution: Tensor


Query = ScoreQuery | RowErrorQuery

SearchRoutine = Generator[Query, Tensor, T]
"""A search over one problem: yields queries, is sent answers, and returns what it found."""


class CandidateScorer:
    """Compare solutions of several problems with the observed gradients.

    Solutions of all problems are padded to the longest; entries after a problem's own places are ignored.

    Args:
        problems: what is to be solved; all have as many sequences.
        labels: the sequences' classes `[problems, sequences]`.
        gradients: the observed gradients.
        matcher: the distance to them.
    """

    def __init__(
        self,
        problems: Sequence[AssignmentProblem],
        labels: Tensor,
        gradients: Sequence[Mapping[str, Tensor]],
        matcher: Matcher,
    ) -> None:
        self.target, self.sequences = problems[0].target, problems[0].sequences
        self._matcher: Callable[[], Matcher] = lambda: matcher
        self.length = max(problem.places for problem in problems)
        self._labels = labels
        self._tokens = max(problem.length for problem in problems)
        self._has_gaps = any(self.target.pad_id in problem.vocabulary for problem in problems)
        self._frames = torch.stack([self._frame(problem) for problem in problems])
        self._where = torch.stack([self._places(problem) for problem in problems])
        # The filler of annealed states is one more token.
        kinds = 1 + max(problem.kinds for problem in problems)
        self._vocabulary = torch.stack([padded(problem.vocabulary, kinds) for problem in problems])
        (self._table,) = self.target.word_parameters
        rows = self._vocabulary.to(gradients[0][self._table].device)
        self._rows = torch.stack([own[self._table][ids] for own, ids in zip(gradients, rows, strict=True)])
        self._fixed: Tensor | None = None
        self._selected: tuple[list[int], CandidateScorer] | None = None
        self._score = ScoreCache(self._scores_of_rows)

    def select(self, numbers: Sequence[int]) -> CandidateScorer:
        """Return a scorer of some of the problems; the last one, if the same problems are selected again."""
        numbers = list(numbers)
        if numbers == list(range(len(self._frames))):
            return self
        if self._selected is None or self._selected[0] != numbers:
            some = copy(self)
            some._matcher = cache(lambda: self._matcher().select(numbers))  # copies gradients: only if it is needed
            some._labels, some._frames, some._where = self._labels[numbers], self._frames[numbers], self._where[numbers]
            some._vocabulary, some._rows = self._vocabulary[numbers], self._rows[numbers]
            some._fixed = None if self._fixed is None else self._fixed[numbers]
            some._selected, some._score = None, ScoreCache(some._scores_of_rows)
            self._selected = numbers, some
        return self._selected[1]

    def with_fixed_sequences(self, solutions: Tensor, sequences: Tensor) -> CandidateScorer:
        """Return a scorer of solutions that differ from these `[problems, places]` in one sequence `[problems]` each.

        The gradients of the other sequences are computed once.
        """
        base = self.candidates(solutions[:, None])
        others = torch.arange(self.sequences).expand(len(sequences), -1)
        order = (others != sequences[:, None]).to(torch.uint8).argsort(dim=1, stable=True)  # that sequence comes first
        fixed = copy(self)
        matcher = self._matcher().with_fixed_sequences(_chosen_sequences(base, order), 0)
        fixed._matcher, fixed._fixed, fixed._selected = lambda: matcher, sequences[:, None], None
        return fixed

    def distances(self, solutions: Tensor) -> Tensor:
        """Return the distances `[problems, count]` of solutions `[problems, count, places]`, on the CPU."""
        count = solutions.shape[1]
        if self.target.device.type == "cuda" and len(solutions) * count <= RECORDED:
            solutions = solutions[:, torch.arange(_power_of_two(count)) % count]
        candidates = self.candidates(solutions)
        if self._fixed is not None:
            candidates = _chosen_sequences(candidates, self._fixed)
        return self._matcher()(candidates)[:, :count].cpu()

    def row_errors(self, solutions: Tensor) -> Tensor:
        """Return the relative error of the word embeddings' gradient at each place's token `[problems, places]`."""
        candidates = self.candidates(solutions[:, None])
        rows = self._vocabulary.to(candidates.mask.device)
        own = row_gradients(self.target, candidates, self._table, rows)[:, 0]
        share = (own - self._rows).norm(dim=2) / self._rows.norm(dim=2).clamp(min=1e-30)
        return share.cpu().gather(1, solutions)

    def answer(self, queries: Mapping[int, Query]) -> dict[int, Tensor]:
        """Answer queries about some of the problems, by the problems' indices."""
        answers: dict[int, Tensor] = {}
        erring = {number: query.solution for number, query in queries.items() if isinstance(query, RowErrorQuery)}
        if erring:
            solutions = torch.stack([padded(own, self.length) for own in erring.values()])
            errors = self.select(list(erring)).row_errors(solutions)
            answers |= {number: row[: len(erring[number])] for number, row in zip(erring, errors, strict=True)}
        scored = {number: query for number, query in queries.items() if isinstance(query, ScoreQuery)}
        if scored:
            rows = [self._as_rows(number, query) for number, query in scored.items()]
            found = torch.split(self._score(torch.cat(rows)), [len(own) for own in rows])
            answers |= zip(scored, found, strict=True)
        return answers

    def candidates(self, solutions: Tensor) -> Candidates:
        """Return solutions `[problems, count, places]` as candidates."""
        victims, count, _ = solutions.shape
        tokens = self._vocabulary.gather(1, solutions.flatten(1)).view_as(solutions)
        frames, where = (own[:, None].expand(-1, count, -1) for own in (self._frames, self._where))
        ids = frames.scatter(2, where, tokens)[..., :-1].reshape(victims, count, self.sequences, self._tokens)
        if self._has_gaps:  # padding goes to the end
            empty = ids == self.target.pad_id
            ids = ids.gather(3, empty.to(torch.uint8).argsort(dim=3, stable=True))
        ids = ids.to(self.target.device)
        labels = self._labels.to(ids.device)[:, None].expand(-1, count, -1)
        return Candidates(ids, ids != self.target.pad_id, labels)

    def _frame(self, problem: AssignmentProblem) -> Tensor:
        """Return the special tokens of all sequences in a row, and one entry more for places of no sequence."""
        ids = problem.slots.ids[0, 0].cpu()
        pad = self.target.pad_id
        wide = torch.nn.functional.pad(ids, (0, self._tokens - ids.shape[1]), value=pad)
        return torch.cat([wide.flatten(), torch.tensor([pad])])

    def _places(self, problem: AssignmentProblem) -> Tensor:
        """Return the index of each place in the frame; the last one for places of no sequence."""
        sequence, token = problem.slots.free[0, 0].cpu().nonzero().T
        inside = sequence * self._tokens + token
        outside = torch.full((self.length - len(inside),), self.sequences * self._tokens)
        return torch.cat([inside, outside])

    def _as_rows(self, number: int, query: ScoreQuery) -> Tensor:
        """Return solutions as rows `[count, 2 + places]`, after the problem and the sequence that they differ in."""
        solutions = padded(query.solutions, self.length)
        about = torch.tensor([number, -1 if query.sequence is None else query.sequence])
        return torch.cat([about.expand(len(solutions), -1), solutions], dim=1)

    def _scores_of_rows(self, rows: Tensor) -> Tensor:
        """Return the distances of solutions of any problems, with one call for problems with about as many of them."""
        about, which, counts = torch.unique(rows[:, :2], dim=0, return_inverse=True, return_counts=True)
        size = counts.double().log2().ceil()  # the same up to the next power of two
        kinds, kind = torch.unique(torch.stack([size, (about[:, 1] >= 0).double()], dim=1), dim=0, return_inverse=True)
        found = torch.empty(len(rows), dtype=torch.float64)
        for number in range(len(kinds)):
            chosen = (kind == number)[which]
            found[chosen] = self._scores_in_one_call(rows[chosen])
        return found

    def _scores_in_one_call(self, rows: Tensor) -> Tensor:
        about, which, counts = torch.unique(rows[:, :2], dim=0, return_inverse=True, return_counts=True)
        order = which.argsort(stable=True)
        first = counts.cumsum(0) - counts
        rank = torch.empty_like(order).scatter(0, order, torch.arange(len(rows)) - first[which[order]])
        # A problem with fewer solutions than the others repeats its last one.
        taken = first[:, None] + torch.arange(int(counts.max())).minimum(counts[:, None] - 1)
        solutions = rows[order[taken], 2:]  # [problems, count, places]
        scorer = self.select(about[:, 0].tolist())
        if int(about[0, 1]) >= 0:
            scorer = scorer.with_fixed_sequences(solutions[:, 0], about[:, 1])
        return scorer.distances(solutions)[which, rank]


def run_in_lockstep(scorer: CandidateScorer, searches: Mapping[int, SearchRoutine[T]]) -> dict[int, T]:
    """Run one search for each of some problems, all in lockstep; return what they found by the problems' indices."""
    found: dict[int, T] = {}
    queries = {}
    for number, search in searches.items():
        try:
            queries[number] = next(search)
        except StopIteration as end:
            found[number] = end.value
    while queries:
        for number, answer in scorer.answer(queries).items():
            try:
                queries[number] = searches[number].send(answer)
            except StopIteration as end:
                found[number] = end.value
                del queries[number]
    return found


def padded(tensor: Tensor, length: int) -> Tensor:
    """Return a tensor `[…, entries]` with zeros appended."""
    return torch.nn.functional.pad(tensor, (0, length - tensor.shape[-1]))


def _power_of_two(count: int) -> int:
    """Return the next power of two."""
    return 1 << (count - 1).bit_length()


def _chosen_sequences(candidates: Candidates, numbers: Tensor) -> Candidates:
    """Return for each problem some of its sequences `[problems, chosen]`."""
    numbers = numbers.to(candidates.mask.device)
    index = numbers[:, None, :, None].expand(-1, candidates.shape[1], -1, candidates.mask.shape[3])
    inputs, mask = candidates.inputs.gather(2, index), candidates.mask.gather(2, index)
    return Candidates(inputs, mask, candidates.labels.gather(2, index[..., 0]))
