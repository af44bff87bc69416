"""Search by learning finds a hidden order after looking at few."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradleak.search import (
    LearningSettings,
    LearningTask,
    PooledMoves,
    SearchControl,
    SequenceFeatures,
    Surrogate,
    search_by_learning,
)

QUICK = LearningSettings(first=400, rounds=8, asked=50, patience=8, chains=100, steps=600)


class World:
    """A goal that is known by its residual: a bent sum of what tokens at places and next to each other add."""

    def __init__(self, goal: list[int], entries: int = 40) -> None:
        self.goal = torch.tensor(goal)
        self.kinds = max(goal) + 1
        self.features = SequenceFeatures(len(goal), self.kinds, 3)
        stream = torch.Generator().manual_seed(len(goal))
        self._effects = torch.randn(self.features.count, entries, generator=stream, dtype=torch.float64)
        self.stream = torch.Generator().manual_seed(1)
        self.compared: list[tuple[int, ...]] = []

    def _seen(self, solutions: Tensor) -> Tensor:
        return (self._effects[self.features(solutions)].sum(dim=1) / 10).tanh()

    def compare(self, solutions: Tensor) -> tuple[Tensor, Tensor]:
        self.compared += map(tuple, solutions.tolist())
        residuals = self._seen(self.goal[None]) - self._seen(solutions)
        return residuals.norm(dim=1), residuals

    def draw(self, count: int) -> Tensor:
        more = torch.randint(self.kinds, (count, len(self.goal) - self.kinds), generator=self.stream)
        solutions = torch.cat([torch.arange(self.kinds).expand(count, -1), more], dim=1)
        return solutions.gather(1, torch.rand(solutions.shape, generator=self.stream).argsort(dim=1))

    def search(
        self, settings: LearningSettings = QUICK, watch: Callable[[Tensor, float], None] | None = None
    ) -> Tensor:
        best, distance = search_by_learning(
            LearningTask(
                draw=self.draw,
                compare=self.compare,
                surrogate=Surrogate(SequenceFeatures(len(self.goal), self.kinds)),
                moves=lambda device: PooledMoves.draw(
                    SequenceFeatures(len(self.goal), self.kinds), self.stream, device
                ),
            ),
            settings,
            self.stream,
            SearchControl(tolerance=1e-9, watch=watch),
        )
        assert distance == pytest.approx(float(self.compare(best[None])[0]))
        self.compared.pop()
        return best


GOALS = [list(range(12)), [0, 1, 2, 0, 3, 4, 0, 5, 6, 2, 7, 0], [1, 0], [0, 0, 0], [0], [0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_the_goal_is_found_and_nothing_compared_twice(goal: list[int]) -> None:
    world = World(goal)
    assert world.search().tolist() == goal
    assert len(world.compared) == len(set(world.compared)) <= 800


def test_what_was_learnt_is_worth_more_than_chance() -> None:
    world = World(list(range(14)))
    heard: list[float] = []
    world.search(
        LearningSettings(first=400, rounds=3, asked=50, chains=50, steps=300), lambda _, loss: heard.append(loss)
    )
    by_chance = float(world.compare(world.draw(20_000))[0].min())
    assert len(heard) == 4
    assert heard == sorted(heard, reverse=True)
    assert heard[-1] < by_chance


def test_a_search_without_progress_ends() -> None:
    heard: list[float] = []
    features, stream = SequenceFeatures(8, 8), torch.Generator().manual_seed(0)
    search_by_learning(
        LearningTask(
            draw=World(list(range(8))).draw,
            compare=lambda solutions: (torch.ones(len(solutions), dtype=torch.float64), solutions.double()),
            surrogate=Surrogate(features),
            moves=lambda device: PooledMoves.draw(features, stream, device),
        ),
        LearningSettings(first=50, rounds=30, asked=20, patience=3, chains=20, steps=20),
        stream,
        SearchControl(watch=lambda _, loss: heard.append(loss)),
    )
    assert heard == [1.0] * 4


def test_the_same_seed_gives_the_same_search() -> None:
    one, other = World(list(range(9))), World(list(range(9)))
    assert one.search().tolist() == other.search().tolist()
    assert one.compared == other.compared


def test_proposals_keep_every_kind_and_reach_other_multiplicities() -> None:
    stream = torch.Generator().manual_seed(0)
    state = torch.tensor([0, 1, 1, 2, 1])
    moves = PooledMoves.draw(SequenceFeatures(5, 3), stream, state.device)
    numbers = torch.rand(1, 2_000, 1, moves.numbers, generator=stream)
    proposed = moves(state.expand(1, 2_000, 5), numbers, 1.0)
    assert proposed.shape == (1, 2_000, 1, 5)
    rows = set(map(tuple, proposed[0, :, 0].tolist()))
    assert all(set(row) == {0, 1, 2} for row in rows)
    counts = {tuple(sorted(row)) for row in rows}
    assert counts == {(0, 1, 1, 1, 2), (0, 0, 1, 1, 2), (0, 1, 1, 2, 2)}
    orders = {row for row in rows if tuple(sorted(row)) == (0, 1, 1, 1, 2)}
    assert len(orders) > 10
