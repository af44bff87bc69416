"""What was scored once is not scored again."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.search import Remembered
from gradleak.search.score_cache import hashes


def test_equal_solutions_are_asked_for_once() -> None:
    asked: list[list[int]] = []

    def score(solutions: Tensor) -> Tensor:
        asked.extend(solutions.tolist())
        return solutions.double() @ torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64)

    memory = Remembered(score)
    memory.note(torch.tensor([[3, 3, 3]]), torch.tensor([0.5]))
    assert memory(torch.tensor([[1, 2, 3], [3, 3, 3], [1, 2, 3]])).tolist() == [123.0, 0.5, 123.0]
    assert memory(torch.tensor([[1, 2, 3], [3, 2, 1]])).tolist() == [123.0, 321.0]
    assert sorted(asked) == [[1, 2, 3], [3, 2, 1]]
    assert memory.asked == 2


def test_orders_have_hashes_of_their_own() -> None:
    orders = torch.rand(20_000, 12, generator=torch.Generator().manual_seed(0)).argsort(dim=1)
    assert len(torch.unique(hashes(orders))) == len(torch.unique(orders, dim=0))
    assert torch.equal(hashes(orders), hashes(orders))
