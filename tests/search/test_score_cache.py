"""A solution is scored once."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradleak.hashing import solution_hashes
from gradleak.search import ScoreCache


def test_equal_solutions_are_asked_for_once() -> None:
    asked: list[list[int]] = []

    def score(solutions: Tensor) -> Tensor:
        asked.extend(solutions.tolist())
        return solutions.double() @ torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64)

    cached = ScoreCache(score)
    cached.add(torch.tensor([[3, 3, 3]]), torch.tensor([0.5]))
    assert cached(torch.tensor([[1, 2, 3], [3, 3, 3], [1, 2, 3]])).tolist() == [123.0, 0.5, 123.0]
    assert cached(torch.tensor([[1, 2, 3], [3, 2, 1]])).tolist() == [123.0, 321.0]
    assert sorted(asked) == [[1, 2, 3], [3, 2, 1]]


def test_orders_have_hashes_of_their_own() -> None:
    orders = torch.rand(20_000, 12, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    assert len(torch.unique(solution_hashes(orders))) == len(torch.unique(orders, dim=0))
    assert torch.equal(solution_hashes(orders), solution_hashes(orders))


@given(seed=st.integers(0, 1_000))
def test_a_solution_is_scored_once_in_all_calls(seed: int) -> None:
    asked: list[tuple[int, ...]] = []

    def score(solutions: Tensor) -> Tensor:
        asked.extend(map(tuple, solutions.tolist()))
        return (solutions * torch.arange(1, 4)).sum(dim=1).double()

    cached = ScoreCache(score)
    parts = torch.randint(3, (4, 10, 3), generator=torch.Generator().manual_seed(seed))
    for part in parts:
        assert cached(part).tolist() == [float((row * torch.arange(1, 4)).sum()) for row in part]
    assert len(asked) == len(set(asked)) == len(torch.unique(parts.flatten(0, 1), dim=0))


def test_scores_from_elsewhere_are_cached_and_the_first_of_them_kept() -> None:
    asked: list[list[int]] = []

    def score(solutions: Tensor) -> Tensor:
        asked.extend(solutions.tolist())
        return torch.full((len(solutions),), 7.0, dtype=torch.float64)

    cached = ScoreCache(score)
    solutions = torch.rand(6, 9, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    cached.add(solutions[:4], torch.arange(4.0))
    cached.add(solutions[:4], torch.full((4,), 9.0))
    assert cached(solutions).tolist() == [0.0, 1.0, 2.0, 3.0, 7.0, 7.0]
    assert sorted(asked) == sorted(solutions[4:].tolist())
