"""Streams from the system: spread as they should be, and never the same twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from conftest import small_target
from gradleak.defenses import defense_stream, parse_defense
from gradleak.exchange import Update
from gradleak.federation import Client
from gradleak.randomness import TWISTER_WORDS, SystemStream, normal, random_stream, start_torch, uniform

COUNT = 200_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_the_system_are_uniform(dtype: torch.dtype) -> None:
    drawn = uniform((COUNT,), SystemStream(), dtype)
    assert drawn.dtype == dtype
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-6


def test_numbers_of_the_system_are_normal() -> None:
    drawn = normal((COUNT // 100, 100), SystemStream())
    assert (drawn.dtype, drawn.shape) == (torch.float32, (COUNT // 100, 100))
    assert torch.isfinite(drawn).all()
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("defense", ["noise:0.5", "laplace:0.5", "mask:0.5", "dpsgd:1,0.5"])
def test_no_stream_of_the_system_repeats_another(defense: str) -> None:
    update = Update({"weight": torch.ones(40, 40)})
    once, again = (parse_defense(defense).apply(update, defense_stream(None)).tensors["weight"] for _ in range(2))
    assert not torch.equal(once, again)


@pytest.mark.parametrize("shape", [(0,), (), (2, 0, 3)])
def test_nothing_drawn_and_one_number_drawn_have_their_shapes(shape: tuple[int, ...]) -> None:
    assert normal(shape, SystemStream()).shape == shape
    assert uniform(shape, SystemStream()).shape == shape


def test_a_seed_gives_pytorchs_own_numbers() -> None:
    torch.testing.assert_close(normal((9,), random_stream(5)), torch.randn(9, generator=random_stream(5)))
    torch.testing.assert_close(uniform((9,), random_stream(5)), torch.rand(9, generator=random_stream(5)))


def test_pytorch_itself_gets_a_whole_state_from_the_system() -> None:
    """A seed would fill the state by a rule, each word from the one before."""
    words = [SystemStream().get_state().numpy()[TWISTER_WORDS].view(np.uint64) for _ in range(2)]
    seeded = torch.Generator().manual_seed(int(words[0][0])).get_state().numpy()[TWISTER_WORDS].view(np.uint64)
    assert seeded[0] == words[0][0]
    assert (words[0] < 2**32).all()
    assert np.mean(words[0] == seeded) < 0.1
    assert np.mean(words[0] == words[1]) < 0.1
    drawn = torch.rand(COUNT, generator=SystemStream())
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > 1e-6


def test_dropout_of_a_client_without_a_seed_is_new_each_time_and_leaves_no_trace() -> None:
    target = small_target("bert")
    before = torch.get_rng_state()
    once, again = (Client(target, dropout=True, seed=None).update(["the cat sat"], [1]) for _ in range(2))
    assert any(not torch.equal(tensor, again.tensors[name]) for name, tensor in once.tensors.items())
    assert torch.equal(torch.get_rng_state(), before)


def test_labels_of_a_client_without_a_seed_are_new_each_time() -> None:
    target = small_target("bert", num_labels=5)
    assert Client(target, seed=None).draw_labels(100) != Client(target, seed=None).draw_labels(100)


def test_pytorchs_global_numbers_start_from_the_system() -> None:
    with torch.random.fork_rng(devices=[]):
        draws = []
        for _ in range(2):
            start_torch(SystemStream())
            draws.append(torch.rand(4))
    assert not torch.equal(*draws)
