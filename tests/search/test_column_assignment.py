"""Column grids: columns keep their tokens, and rows are found by what each adds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from gradleak.search import (
    ColumnExchanges,
    ColumnFrame,
    ColumnGrid,
    GridFeatures,
    LearningSettings,
    LearningTask,
    RowSurrogate,
    SearchControl,
    search_by_learning,
)

PADDING = 6
FRAME = ColumnFrame([[0, 1, 2], [1, 3], [4, 5], [0]], [4, 2, 3])
GRID = ColumnGrid([FRAME], PADDING, 7)


def columns(solution: Tensor, rows: int) -> list[Counter[int]]:
    return [Counter(column.tolist()) for column in solution.view(rows, -1).T]


def rows_are_whole(solution: Tensor, rows: int) -> bool:
    """Whether no token follows padding."""
    ended = (solution.view(rows, -1) == PADDING).int()
    return bool((ended.diff(dim=1) >= 0).all())


@pytest.mark.parametrize(
    ("tokens", "lengths", "possible"),
    [
        ([[0, 1, 2], [1, 3], [4, 5], [0]], [4, 2, 3], True),
        ([[0, 1, 2], [1, 3], [4, 5], [0]], [4, 3, 3], True),
        ([[0, 1, 2], [1, 3], [4, 5], [0]], [4, 2, 2], False),
        ([[0], []], [1, 2], False),
        ([[0], []], [1, 1], True),
    ],
    ids=str,
)
def test_a_frame_is_possible_if_its_columns_have_room(
    tokens: list[list[int]], lengths: list[int], possible: bool
) -> None:
    assert ColumnFrame(tokens, lengths).is_possible is possible


def test_drawn_grids_hold_the_tokens_of_their_frame() -> None:
    other = ColumnFrame([[0, 1], [3], [4, 5], [0, 1]], [4, 4, 4])
    grid = ColumnGrid([FRAME, other], PADDING, 7)
    drawn = grid.draw(200, torch.Generator().manual_seed(0))
    assert drawn.shape == (200, 12)
    assert all(rows_are_whole(one, 3) for one in drawn)
    kinds = {tuple(frozenset(column) - {PADDING} for column in columns(one, 3)) for one in drawn}
    assert kinds == {tuple(map(frozenset, frame.columns)) for frame in (FRAME, other)}
    assert len(torch.unique(drawn, dim=0)) > 100


def test_exchanges_keep_columns_and_leave_no_gaps() -> None:
    stream = torch.Generator().manual_seed(0)
    moves = ColumnExchanges(3, PADDING)
    states = GRID.draw(500, stream)
    for _ in range(20):
        numbers = torch.rand(1, 500, 1, moves.numbers, generator=stream)
        proposed = moves(states[None], numbers, 1.0)[0, :, 0]
        for before, after in zip(states, proposed, strict=True):
            assert rows_are_whole(after, 3)
            for old, new in zip(columns(before, 3), columns(after, 3), strict=True):
                assert set(old) == set(new)
                assert old[PADDING] == new[PADDING]
        assert float((proposed != states).any(dim=1).double().mean()) > 0.5
        states = proposed


def test_exchanges_reach_every_grid() -> None:
    grid = ColumnGrid([ColumnFrame([[0, 1], [2, 3], [4]], [3, 2])], PADDING, 7)
    stream, moves = torch.Generator().manual_seed(0), ColumnExchanges(2, PADDING)
    states = grid.draw(1, stream).expand(300, -1)
    for _ in range(30):
        states = moves(states[None], torch.rand(1, 300, 1, moves.numbers, generator=stream), 1.0)[0, :, 0]
    assert len(torch.unique(states, dim=0)) == 8  # two rows, and three columns in which they can differ


def test_a_repeated_token_becomes_another_of_its_column() -> None:
    moves = ColumnExchanges(3, PADDING)
    stream = torch.Generator().manual_seed(0)
    numbers = torch.rand(1, 2_000, 1, moves.numbers, generator=stream)
    proposed = moves(torch.tensor([0, 0, 1]).expand(1, 2_000, 3), numbers, 1.0)[0, :, 0]
    assert {tuple(sorted(row)) for row in proposed.tolist()} == {(0, 0, 1), (0, 1, 1)}


def test_features_tell_rows_of_different_classes_columns_and_neighbours_apart() -> None:
    features = GridFeatures.of(GRID, torch.tensor([0, 1, 0]))
    solutions = GRID.draw(50, torch.Generator().manual_seed(0))
    numbers = features(solutions)
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < features.count
    assert len({tuple(sorted(row)) for row in numbers.tolist()}) > 20
    exchanged = solutions.view(50, 3, 4)[:, [2, 1, 0]].flatten(1)  # rows of one class change places
    assert torch.equal(numbers.sort(dim=1).values, features(exchanged).sort(dim=1).values)
    every = features.of_rows(solutions).view(2, 50, 3, -1)
    assert torch.equal(every[[0, 1, 0], :, [0, 1, 2]].transpose(0, 1).flatten(1), numbers)


class World:
    """A goal that is the sum of what rows add: a bent sum of their features, in each class another."""

    def __init__(self, grid: ColumnGrid, goal: Tensor, classes: Tensor) -> None:
        self.features = GridFeatures.of(grid, classes, reach=3)
        stream = torch.Generator().manual_seed(0)
        self._effects = torch.randn(self.features.count, 30, generator=stream, dtype=torch.float64)
        self.rows, self.classes = grid.rows, classes
        self.goal = self.added(goal[None])[0]

    def gradients(self, solutions: Tensor) -> Tensor:
        numbers = self.features.of_rows(solutions)
        added = (self._effects[numbers].sum(dim=1) / 5).tanh()
        return added.view(self.features.different_classes, len(solutions), self.rows, -1)

    def added(self, solutions: Tensor) -> Tensor:
        return self.gradients(solutions)[self.classes, :, torch.arange(self.rows)].sum(dim=0)

    def compare(self, solutions: Tensor) -> tuple[Tensor, Tensor]:
        residuals = self.goal - self.added(solutions)
        return residuals.norm(dim=1), residuals


def test_rows_of_a_large_grid_are_found_after_a_few_hundred_looks() -> None:
    columns, rows = 12, 3
    frame = ColumnFrame(
        [[3 * number, 3 * number + 1, 3 * number + 2] for number in range(columns)], [columns, 9, columns]
    )
    frame = ColumnFrame(
        [tokens[: 3 if number < 9 else 2] for number, tokens in enumerate(frame.columns)], frame.lengths
    )
    grid = ColumnGrid([frame], 36, 37)
    stream = torch.Generator().manual_seed(1)
    goal, classes = grid.draw(1, stream)[0], torch.tensor([0, 1, 0])
    world, looks = World(grid, goal, classes), []

    def compare(solutions: Tensor) -> tuple[Tensor, Tensor]:
        looks.append(len(solutions))
        return world.compare(solutions)

    best, distance = search_by_learning(
        LearningTask(
            draw=lambda count: grid.draw(count, stream),
            compare=compare,
            surrogate=RowSurrogate(GridFeatures.of(grid, classes), world.gradients, world.goal),
            moves=lambda _: ColumnExchanges(rows, 36),
        ),
        LearningSettings(first=200, rounds=10, asked=50, chains=60, steps=400),
        stream,
        SearchControl(tolerance=1e-9),
    )
    assert distance < 1e-9
    assert sorted(best.view(rows, -1)[[0, 2]].tolist()) == sorted(goal.view(rows, -1)[[0, 2]].tolist())
    assert best.view(rows, -1)[1].tolist() == goal.view(rows, -1)[1].tolist()
    assert sum(looks) < 800
