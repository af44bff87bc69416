"""Column grids: sequences one below the other, with the tokens of each column known but not their rows.

A solution names a token for each place of the grid, row after row; a row that has ended holds padding. Moves exchange
the tokens of two rows in some columns, and every column keeps its tokens. Used by FET's preset `thorough`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradleak.search.surrogate import Surrogate, SurrogatePrediction

# Shares of proposals that exchange one column, that exchange all that follow, and that replace a token.
SINGLE, TAIL, REPLACED = 0.45, 0.2, 0.1


@dataclass(frozen=True)
class ColumnFrame:
    """One possibility for the content of a grid.

    Attributes:
        columns: the different tokens of each column.
        lengths: how many tokens each row holds, in any order of the rows.
    """

    columns: Sequence[Sequence[int]]
    lengths: Sequence[int]

    @property
    def repeated(self) -> int:
        """How many places hold a token that another row has in the same column, too."""
        return sum(self.lengths) - sum(map(len, self.columns))

    @property
    def is_possible(self) -> bool:
        """Whether each column has a place for each of its tokens, and tokens if it has places."""
        filled = [sum(length > column for length in self.lengths) for column in range(len(self.columns))]
        return all(
            len(tokens) <= places and bool(tokens) == bool(places)
            for tokens, places in zip(self.columns, filled, strict=True)
        )


@dataclass(frozen=True)
class ColumnGrid:
    """Rows and columns of tokens.

    Attributes:
        frames: the possible contents, one or several.
        padding: the token of places after the end of a row.
        kinds: how many different tokens there are, padding included.
    """

    frames: Sequence[ColumnFrame]
    padding: int
    kinds: int

    @property
    def rows(self) -> int:
        """How many sequences there are."""
        return len(self.frames[0].lengths)

    @property
    def columns(self) -> int:
        """How many places each sequence has."""
        return len(self.frames[0].columns)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw solutions `[count, rows × columns]`: rows of tokens, and which are repeated, at random."""
        first = torch.randint(len(self.frames), (1,), generator=generator)
        which = (first + torch.arange(count)) % len(self.frames)
        solutions = torch.empty(count, self.rows, self.columns, dtype=torch.long)
        for number in torch.unique(which).tolist():
            drawn = which == number
            solutions[drawn] = self._drawn(self.frames[number], int(drawn.sum()), generator)
        return solutions.flatten(1)

    def _drawn(self, frame: ColumnFrame, count: int, generator: torch.Generator) -> Tensor:
        lengths = _shuffled(torch.tensor(list(frame.lengths)).expand(count, -1), generator)
        solutions = torch.full((count, self.rows, self.columns), self.padding)
        for column, tokens in enumerate(frame.columns):
            holds = lengths > column
            places = sum(length > column for length in frame.lengths)
            different = torch.tensor(list(tokens), dtype=torch.long)
            again = torch.randint(max(1, len(tokens)), (count, places - len(tokens)), generator=generator)
            held = torch.cat([different.expand(count, -1), different[again]], dim=1)
            solutions[:, :, column][holds] = _shuffled(held, generator).flatten()
        return solutions

    @cached_property
    def choices(self) -> Tensor:
        """The index of each token among those that a column may hold `[columns, kinds]`, padding last."""
        numbers = torch.zeros(self.columns, self.kinds, dtype=torch.long)
        for column in range(self.columns):
            tokens = sorted({token for frame in self.frames for token in frame.columns[column]})
            numbers[column, [*tokens, self.padding]] = torch.arange(len(tokens) + 1)
        return numbers


@dataclass(frozen=True)
class ColumnExchanges:
    """Proposals for annealing: two rows exchange a run of columns, or a repeated token becomes another of its column.

    Attributes:
        rows: how many sequences a solution has.
        padding: the token of places after the end of a row.
    """

    rows: int
    padding: int

    @property
    def numbers(self) -> int:
        """How many random numbers a proposal needs: two rows, a first and a last column, and the kind of move."""
        return 5

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return one proposal for each start (see `ProposeForOne`)."""
        grids = states.view(*states.shape[:2], self.rows, -1)  # [problems, starts, rows, columns]
        one, other, first, last, what = numbers[:, :, 0].double().unbind(dim=-1)
        one_row = (one * self.rows).long()
        other_row = (one_row + 1 + (other * (self.rows - 1)).long()) % self.rows
        at_one, at_other = (row[..., None, None].expand_as(grids[:, :, :1]) for row in (one_row, other_row))
        here, there = grids.gather(2, at_one)[:, :, 0], grids.gather(2, at_other)[:, :, 0]
        taken = self._run(here, there, first, last, what)
        exchanged = grids.scatter(2, at_one, torch.where(taken, there, here)[:, :, None])
        exchanged = exchanged.scatter(2, at_other, torch.where(taken, here, there)[:, :, None])
        repeated = (grids == here[:, :, None]).sum(dim=2) > 1
        column = (first * grids.shape[-1]).long()[..., None] == torch.arange(grids.shape[-1], device=states.device)
        inside = (here != self.padding) & (there != self.padding)
        copied = grids.scatter(2, at_one, torch.where(column & repeated & inside, there, here)[:, :, None])
        return torch.where((what < REPLACED)[..., None, None], copied, exchanged).flatten(2)[:, :, None]

    def _run(self, here: Tensor, there: Tensor, first: Tensor, last: Tensor, what: Tensor) -> Tensor:
        """Choose the columns to exchange `[…, columns]`; where a row ends, all that follow: rows must have no gaps."""
        columns = here.shape[-1]
        number = torch.arange(columns, device=here.device)
        ended = (here == self.padding) | (there == self.padding)
        end = torch.where(ended.any(dim=-1), ended.int().argmax(dim=-1), columns)
        start = torch.minimum((first * columns).long(), end)
        stop = start + (last * (columns - start)).long()
        stop = torch.where(what < REPLACED + TAIL, columns, torch.where(what > 1 - SINGLE, start, stop))
        stop = torch.where(stop >= end, columns, stop)
        return (number >= start[..., None]) & (number <= stop[..., None])


@dataclass(frozen=True)
class GridFeatures:
    """Features of a grid: tokens in columns, and pairs of tokens in columns near each other.

    The gradient of a row depends on its class: each class has separate features.

    Attributes:
        choices: see `ColumnGrid.choices` `[columns, kinds]`.
        classes: the index of each row's class `[rows]`.
        width: how many tokens a column may hold at most, padding included.
        different_classes: how many classes there are.
        reach: how far apart the columns of a pair are at most.
    """

    choices: Tensor
    classes: Tensor
    width: int
    different_classes: int
    reach: int

    @classmethod
    def of(cls, grid: ColumnGrid, classes: Tensor, reach: int = 2, device: torch.device | None = None) -> GridFeatures:
        """Return the features of a grid's solutions, for solutions on that device."""
        width, different = int(grid.choices.max()) + 1, int(classes.max()) + 1
        return cls(grid.choices.to(device), classes.to(device), width, different, min(reach, grid.columns - 1))

    @property
    def count(self) -> int:
        """How many features there are."""
        return self.different_classes * self._of_a_class

    @property
    def rows(self) -> int:
        """How many rows a grid has."""
        return len(self.classes)

    def __call__(self, solutions: Tensor) -> Tensor:
        """Return the indices of the features of solutions `[count, features of one]`."""
        return self._numbers(solutions, self.classes).flatten(1)

    def of_rows(self, solutions: Tensor) -> Tensor:
        """Return the features that each row would have in each class `[classes × count × rows, features of one]`."""
        every = torch.arange(self.different_classes, device=solutions.device)[:, None, None]
        return self._numbers(solutions, every).flatten(0, 2)

    def _numbers(self, solutions: Tensor, classes: Tensor) -> Tensor:
        """Return features `[…, count, rows, features of one]`, of rows whose classes are `[…, rows]`."""
        columns, width = len(self.choices), self.width
        column = torch.arange(columns, device=solutions.device)
        held = self.choices[column, solutions.view(len(solutions), self.rows, columns)]
        numbers, before = [column * width + held], columns * width
        for gap in range(1, self.reach + 1):
            numbers.append(before + (column[:-gap] * width + held[..., :-gap]) * width + held[..., gap:])
            before += columns * width**2
        return torch.cat(numbers, dim=-1) + classes[..., None] * self._of_a_class

    @property
    def _of_a_class(self) -> int:
        return len(self.choices) * self.width * (1 + self.reach * self.width)


class RowSurrogate:
    """Learn the gradient of single rows, to predict the residual of a whole grid.

    The gradient of a batch is the sum of the gradients of its sequences: every row is a sample, in each class.

    Args:
        features: the features of grids.
        row_gradients: computes the gradients of the rows of solutions in each class `[classes, count, rows, entries]`.
        goal: the residual of a grid without rows `[entries]`.
    """

    def __init__(self, features: GridFeatures, row_gradients: Callable[[Tensor], Tensor], goal: Tensor) -> None:
        self._features, self._row_gradients, self._goal = features, row_gradients, goal
        self._surrogate = Surrogate(features)

    def learn(self, solutions: Tensor, residuals: Tensor, weights: Tensor) -> None:
        """Add the rows of more solutions to the model's data (see `Surrogate.learn`)."""
        gradients = self._row_gradients(solutions)
        rows = self._features.of_rows(solutions.to(gradients.device))
        each = weights.to(gradients.device)[:, None].expand(gradients.shape[:3])
        self._surrogate.learn_features(rows, -gradients.flatten(0, 2), each.flatten())

    def fit(self) -> SurrogatePrediction:
        """Return the fitted model, for whole grids."""
        of_rows = self._surrogate.fit()
        goal = (self._goal @ of_rows.view).to(of_rows.base.dtype)
        return replace(of_rows, base=self._features.rows * of_rows.base + goal)


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(dim=1))
