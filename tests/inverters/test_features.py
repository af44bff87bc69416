"""The features of an inverter: a gradient hashed, or some of its rows kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.inverters.features import HashedGradient, KeptRows


def projection(hashed: HashedGradient) -> torch.Tensor:
    """Return the matrix that hashing stands for `[features, entries]`, column by column."""
    size = sum(hashed.sizes.values())
    units = torch.eye(size).split(list(hashed.sizes.values()), dim=1)
    return hashed(dict(zip(hashed.sizes, units, strict=True))).T


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3), st.floats(0.01, 1.0), st.integers(0, 5))
def test_every_entry_falls_into_exactly_one_bin_and_bins_are_even(sizes: list[int], share: float, seed: int) -> None:
    hashed = HashedGradient({f"p{i}": size for i, size in enumerate(sizes)}, share, seed)
    matrix = projection(hashed)
    assert matrix.shape == (hashed.features, sum(sizes))
    assert set(matrix.unique().tolist()) <= {0.0, 1.0}
    assert bool((matrix.sum(dim=0) == 1).all())


@pytest.mark.parametrize(
    ("size", "share", "features"), [(1000, 0.1, 100), (3200, 0.1, 320), (320, 0.11, 64), (7, 0.1, 1)]
)
def test_the_share_decides_how_many_bins_there_are(size: int, share: float, features: int) -> None:
    hashed = HashedGradient({"p": size}, share)
    assert hashed.features == features
    fullest = projection(hashed).sum(dim=1)
    assert fullest.max() - fullest.min() <= 1 + (size % features > 0)


def test_the_seed_and_the_name_decide_which_bin() -> None:
    first, again, seed = (projection(HashedGradient({"p": 960}, 0.1, seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, seed)
    assert not torch.equal(first, projection(HashedGradient({"q": 960}, 0.1, 0)))


def test_hashing_keeps_angles_on_average() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 9_600, generator=stream)
    reduced = HashedGradient({"p": 9_600}, 0.2)({"p": rows.view(40, 96, 100)})
    assert reduced.shape == (40, 1_920)
    expected, found = (torch.nn.functional.normalize(part, dim=1) for part in (rows, reduced))
    assert torch.allclose(found @ found.T, expected @ expected.T, atol=0.15)


def test_rows_are_kept_as_they_are() -> None:
    kept = KeptRows({"m": torch.tensor([2, 0]), "v": torch.tensor([1])}, {"m": 3, "v": 1})
    matrix, vector = torch.arange(12.0).view(1, 4, 3), torch.tensor([[5.0, 6.0]])
    assert kept({"m": matrix, "v": vector}).tolist() == [[6, 7, 8, 0, 1, 2, 6]]
    assert kept.features == 7
    assert kept.names == ("m", "v")
    assert set(kept.tensors()) == {"rows.m", "rows.v"}
