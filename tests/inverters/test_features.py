"""Fewer numbers than the gradient has: hashed, or the best of them kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_inverters import QUICK, language_model, pseudo

from gradleak.inversion import Examples, choose_rows, informativeness
from gradleak.inversion.probe import Finding
from gradleak.inverters.features import Hashed, Kept


def projection(hashed: Hashed) -> torch.Tensor:
    """Return the matrix that hashing stands for `[features, entries]`, column by column."""
    size = sum(hashed.sizes.values())
    units = torch.eye(size).split(list(hashed.sizes.values()), dim=1)
    return hashed(dict(zip(hashed.sizes, units, strict=True))).T


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3), st.floats(0.01, 1.0), st.integers(0, 5))
def test_every_entry_falls_into_exactly_one_bin_and_bins_are_even(sizes: list[int], share: float, seed: int) -> None:
    hashed = Hashed({f"p{i}": size for i, size in enumerate(sizes)}, share, seed)
    matrix = projection(hashed)
    assert matrix.shape == (hashed.features, sum(sizes))
    assert set(matrix.unique().tolist()) <= {0.0, 1.0}
    assert bool((matrix.sum(dim=0) == 1).all())


@pytest.mark.parametrize(
    ("size", "share", "features"), [(1000, 0.1, 100), (3200, 0.1, 320), (320, 0.11, 64), (7, 0.1, 1)]
)
def test_the_share_decides_how_many_bins_there_are(size: int, share: float, features: int) -> None:
    hashed = Hashed({"p": size}, share)
    assert hashed.features == features
    fullest = projection(hashed).sum(dim=1)
    assert fullest.max() - fullest.min() <= 1 + (size % features > 0)


def test_the_seed_and_the_name_decide_which_bin() -> None:
    first, again, seed = (projection(Hashed({"p": 960}, 0.1, seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, seed)
    assert not torch.equal(first, projection(Hashed({"q": 960}, 0.1, 0)))


def test_hashing_keeps_angles_on_average() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 9_600, generator=stream)
    reduced = Hashed({"p": 9_600}, 0.2)({"p": rows.view(40, 96, 100)})
    assert reduced.shape == (40, 1_920)
    expected, found = (torch.nn.functional.normalize(part, dim=1) for part in (rows, reduced))
    assert torch.allclose(found @ found.T, expected @ expected.T, atol=0.15)


def test_rows_are_kept_as_they_are() -> None:
    kept = Kept({"m": torch.tensor([2, 0]), "v": torch.tensor([1])}, {"m": 3, "v": 1})
    matrix, vector = torch.arange(12.0).view(1, 4, 3), torch.tensor([[5.0, 6.0]])
    assert kept({"m": matrix, "v": vector}).tolist() == [[6, 7, 8, 0, 1, 2, 6]]
    assert kept.features == 7
    assert kept.names == ("m", "v")
    assert set(kept.tensors()) == {"rows.m", "rows.v"}


# --- the probe -------------------------------------------------------------------------------------------------------


def test_the_probe_finds_the_gradient_that_tells_the_text() -> None:
    target = language_model()
    examples = Examples(target, pseudo(target), [])
    chunks = []
    for number in range(2):
        chunk = examples.make(number, 300)
        told = target.embed(chunk.ids).flatten(1)
        noise = torch.randn(300, 8, 9, generator=torch.Generator().manual_seed(number))
        rows = torch.cat([told.view(300, -1, 8), torch.zeros(300, 5, 8)], dim=1)  # the last rows are never used
        chunks.append((chunk, {"transformer.h.0.mlp.c_fc.weight": noise, "transformer.wpe.weight": rows}))
        chunk.gradients.update(chunks[-1][1])
    found = informativeness(target, chunks)
    assert found["transformer.wpe.weight"].explained > 0.9
    assert found["transformer.h.0.mlp.c_fc.weight"].explained < 0.1
    assert found["transformer.wpe.weight"].rows.tolist() == list(range(6 * 32 // 8))


def finding(explained: float, rows: int, width: int) -> Finding:
    return Finding(explained, torch.arange(rows), width)


def test_the_most_informative_come_first_and_the_last_is_kept_in_part() -> None:
    found = {"a": finding(0.1, 10, 5), "b": finding(0.5, 4, 5), "c": finding(0.3, 6, 5), "d": finding(0.001, 2, 1)}
    kept = choose_rows(found, 60)
    assert kept is not None
    assert {name: len(rows) for name, rows in kept.rows.items()} == {"a": 2, "b": 4, "c": 6}
    assert kept.rows["a"].tolist() == [0, 9]
    assert kept.features == 60


def test_what_says_little_is_taken_only_where_nothing_says_more() -> None:
    assert list(choose_rows({"a": finding(0.5, 10, 1), "b": finding(0.0, 10, 1)}, 20).rows) == ["a"]  # type: ignore[union-attr]
    assert list(choose_rows({"a": finding(0.5, 2, 1), "b": finding(0.0, 10, 1)}, 20).rows) == ["a", "b"]  # type: ignore[union-attr]
    assert choose_rows({"a": finding(0.5, 10, 30)}, 20) is None


def test_noise_does_not_hide_which_rows_are_alive() -> None:
    target = language_model()
    examples = Examples(target, pseudo(target), ["transformer.wpe.weight"])
    chunk = examples.make(0, QUICK.chunk)
    noisy = {name: tensor + torch.randn_like(tensor) for name, tensor in chunk.gradients.items()}
    found = informativeness(target, [(chunk, noisy)])
    assert found["transformer.wpe.weight"].rows.tolist() == [0, 1, 2, 3, 4]  # the last token predicts nothing
