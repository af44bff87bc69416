"""The algebra of the pursuit: sites together are as one by one, and trees of prefixes as the texts themselves."""

from __future__ import annotations

import pytest
import torch

from conftest import small_target
from gradleak.attacks.forest.prefix_inputs import PrefixInputs, PrefixTree
from gradleak.attacks.forest.residual import Dictionary, Residual, stacked
from gradleak.attacks.forest.sites import find_sites
from gradleak.federation import Client
from gradleak.targets.hooks import captured_inputs


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rows_of_fewer_vectors_have_their_rank_and_are_explained_by_them() -> None:
    vectors = numbers(5, 40)
    residual = Residual(numbers(12, 5, seed=1) @ vectors)
    assert (residual.rank, residual.full, residual.explained) == (5, False, False)
    assert residual.basis.shape == (5, 40)
    torch.testing.assert_close(residual.basis @ residual.basis.T, torch.eye(5, dtype=torch.float64))
    for vector in vectors[:4]:
        residual.pick(vector)
    assert not residual.explained
    assert not bool(residual.pick(vectors[0]).any())  # nothing new
    residual.pick(vectors[4])
    assert residual.explained
    assert residual.fresh().rank == 5
    assert not residual.fresh().explained


def test_vectors_picked_together_leave_what_they_leave_one_by_one() -> None:
    vectors, rows = numbers(4, 30), numbers(9, 30, seed=1)
    together, alone = Residual(rows), Residual(rows)
    together.pick_all(torch.cat([vectors, vectors[:1]]))
    for vector in vectors:
        alone.pick(vector)
    torch.testing.assert_close(together.left.T @ together.left, alone.left.T @ alone.left)
    assert together.fraction == pytest.approx(alone.fraction)


def test_sites_together_score_as_one_by_one() -> None:
    sites = [Residual(numbers(height, 30, seed=height)) for height in (6, 9)]
    vectors = numbers(2, 8, 30, seed=3)
    both = Dictionary(stacked(sites), vectors[:, :5])
    both.add(vectors[:, 5:])
    single = [Dictionary(site, own) for site, own in zip(sites, vectors, strict=True)]
    for number in (2, 6):
        both.pick(number)
        for one in single:
            one.pick(number)
    torch.testing.assert_close(both.scores(), torch.stack([one.scores() for one in single]))
    assert len(both) == 8


def test_a_tree_sees_along_its_branches_alone() -> None:
    tree = PrefixTree.of([(5, 6, 7), (5, 8), (5, 6)])
    assert tree.tokens == [5, 6, 7, 8]
    assert tree.parents == [-1, 0, 1, 0]
    assert tree.positions == [0, 1, 2, 1]
    assert tree.sees.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma2", "gpt_neox", "gpt2"])
def test_inputs_of_prefixes_are_those_of_the_texts(family: str) -> None:
    changes = {"sliding_window": 3} if family in ("mistral", "gemma2") else {}
    target = small_target(family, "causal-lm", **changes)
    text = "the big dog ran on a mat"
    sites = find_sites(target, Client(target).update([text]).gradient())
    ids = tuple(target.encode([text]).ids[0].tolist())
    prefixes = [ids[:3], ids[:6], (*ids[:2], ids[5]), ids[:1]]
    numbers_of_sites = list(range(len(sites)))
    found = PrefixInputs(target, sites).of_prefixes(prefixes, numbers_of_sites)
    for row, prefix in enumerate(prefixes):
        plain = captured_inputs(target, torch.tensor([prefix]), [site.path for site in sites])
        for number, site in enumerate(sites):
            torch.testing.assert_close(found[number][row], plain[site.path][0, -1], rtol=1e-4, atol=1e-5)
