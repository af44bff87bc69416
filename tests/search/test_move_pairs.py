"""Pairs of moves are ranked as if their changes simply added up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.search import likely_pairs


@given(seed=st.integers(0, 1_000), moves=st.integers(1, 9), seconds=st.integers(1, 9), count=st.integers(1, 100))
def test_pairs_come_in_the_order_of_their_summed_distance(seed: int, moves: int, seconds: int, count: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    residual = torch.randn(4, generator=stream, dtype=torch.float64)
    changes = torch.randn(moves, 4, generator=stream, dtype=torch.float64)
    first, second = likely_pairs(residual, changes, count, seconds)
    found = list(zip(first.tolist(), second.tolist(), strict=True))
    pairs = [(i, j) for i in range(moves) for j in range(min(moves, seconds))]
    assert len(set(found)) == len(found) == min(count, len(pairs))
    assert set(found) <= set(pairs)
    distances = {(i, j): float((residual - changes[i] - changes[j]).norm()) for i, j in pairs}
    assert [distances[pair] for pair in found] == pytest.approx(sorted(distances.values())[: len(found)])


def test_of_many_moves_the_most_promising_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradleak.search.move_pairs.MOST", 3)
    changes = torch.eye(6, dtype=torch.float64)
    residual = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    first, second = likely_pairs(residual, changes, 100)
    assert set(first.tolist()) == set(second.tolist()) == {1, 3, 4}
