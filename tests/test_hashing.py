"""Rows are told apart by random hashes."""

from __future__ import annotations

import itertools

import torch

from gradleak.hashing import row_hashes


def test_different_rows_have_different_hashes() -> None:
    rows = torch.tensor(list(itertools.product(range(8), repeat=5)))
    assert len(row_hashes(rows).unique()) == len(rows)
    assert torch.equal(row_hashes(rows), row_hashes(rows.clone()))


def test_zeros_at_the_end_do_not_change_a_hash() -> None:
    rows = torch.randint(30_000, (50, 7), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([rows, torch.zeros(50, 60, dtype=torch.long)], dim=1)
    assert torch.equal(row_hashes(rows), row_hashes(padded))


def test_leading_dimensions_are_kept_and_seeds_differ() -> None:
    rows = torch.arange(24).view(2, 3, 4)
    assert torch.equal(row_hashes(rows).flatten(), row_hashes(rows.flatten(0, 1)))
    assert not torch.equal(row_hashes(rows), row_hashes(rows, seed=1))
