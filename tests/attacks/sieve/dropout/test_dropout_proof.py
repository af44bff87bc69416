from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.dropout.proof import surplus, unexplained
from gradleak.leakage.row_space import Subspace


def test_a_missing_row_leaves_something_unexplained() -> None:
    rows = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)) @ rows
    assert unexplained(gradient, rows) < 1e-6
    assert unexplained(gradient, rows[1:]) > 1e-2


def test_chance_is_ruled_out_only_where_enough_equations_are_left() -> None:
    def space(rank: int) -> Subspace:
        return Subspace(torch.eye(384, dtype=torch.float64)[:, :rank], torch.ones(384))

    assert surplus(space(200), 0.1, 30_000, 1e-4) == pytest.approx(200 * 170, rel=0.05)
    assert surplus(space(375), 0.1, 30_000, 1e-4) is None
