"""Tables of which a few rows were looked up are compared and read by these rows alone."""

from __future__ import annotations

import pytest
import torch

from conftest import small_target
from gradleak.matching import Candidates, autograd_gradients, row_gradients
from gradleak.matching.elementwise import difference_sums, row_difference_sums
from gradleak.matching.factors import LookupRows
from gradleak.targets import Target


@pytest.mark.parametrize("kept_only", [True, False])
def test_sums_over_rows_equal_sums_over_whole_tables(kept_only: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(6, (2, 5, 4), generator=generator)  # some rows several times
    columns = torch.randn(2, 5, 4, 3, generator=generator, dtype=torch.float64)
    observed = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    observed[:, ::2] = 0
    found = row_difference_sums(index, columns, observed, kept_only=kept_only)
    table = LookupRows(index, columns, 6).dense()
    expected = difference_sums(table, observed, kept_only=kept_only)
    without = difference_sums(torch.zeros_like(table), observed, kept_only=kept_only)
    for more, whole, nothing in zip(found, expected, without, strict=True):
        assert torch.allclose(more, whole - nothing, atol=1e-12)


def candidates(target: Target) -> Candidates:
    ids = torch.randint(5, len(target.word_embeddings), (2, 3, 2, 6), generator=torch.Generator().manual_seed(1))
    ids[0, 0, 0] = ids[0, 0, 1]
    return Candidates(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([0, 1]).expand(2, 3, 2))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_single_rows_equal_those_of_the_whole_gradient(family: str) -> None:
    target = small_target(family, dtype=torch.float64)
    (table,) = target.word_parameters
    guesses = candidates(target)
    rows = torch.cat([guesses.inputs[:, 0, 0], torch.tensor([[3], [4]])], dim=1)  # looked up, and not
    whole = autograd_gradients(target, guesses, [table])[table]
    expected = torch.stack([own[:, ids] for own, ids in zip(whole, rows, strict=True)])
    assert torch.allclose(row_gradients(target, guesses, table, rows), expected, atol=1e-10)
    assert not row_gradients(target, guesses, table, rows)[:, :, -1].any()
