"""Where the signal of a row space ends: at the cliff down to a flat floor, whatever made the floor."""

from __future__ import annotations

import pytest
import torch

from gradleak.leakage.noise_floor import whiten
from gradleak.leakage.row_space import matrix_rank, row_space, signal_rank

WIDTH = 96


def gradients(tokens: int, decay: float = 0.01) -> torch.Tensor:
    """Return a gradient of so many tokens whose weakest counts for `decay` of the strongest."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)
    strength = torch.logspace(0, torch.tensor(decay).log10().item(), tokens, dtype=torch.float64)
    return torch.randn(3 * WIDTH, tokens, generator=generator, dtype=torch.float64) * strength @ rows


@pytest.mark.parametrize("tokens", [3, 12, 60, 90])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_rank_is_found_under_rounding_of_any_precision(tokens: int, dtype: torch.dtype) -> None:
    space = row_space([gradients(tokens, 0.1).to(dtype)])
    assert space.rank == tokens


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 5e-7, 1e-4, 1e-3])
def test_the_rank_is_found_above_noise_of_any_size(noise: float) -> None:
    exact = gradients(20)
    noisy = exact + noise * exact.std() * torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    space = row_space([noisy])
    assert space.rank == 20
    assert space.error == pytest.approx(float(space.values[20] / space.values[19]))


def test_a_sentence_of_small_gradient_counts_as_signal() -> None:
    values = torch.cat([torch.logspace(0, -2, 10), torch.logspace(-5, -5.5, 5), torch.full((40,), 2e-8)])
    assert signal_rank(values.double()) == 15


def test_a_full_space_has_no_floor() -> None:
    space = row_space([gradients(3 * WIDTH)])
    assert space.rank == WIDTH
    assert space.error == 1.0


def test_noise_alone_has_no_cliff() -> None:
    noise = torch.randn(3 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
    assert row_space([noise]).error == 1.0


def test_a_gradient_of_nothing_has_no_rank() -> None:
    assert row_space([torch.zeros(4, WIDTH)]).rank == 0


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_row_space_of_a_gradient_is_the_span_of_the_inputs() -> None:
    inputs = drawn(9, WIDTH)
    gradients = [(drawn(WIDTH, 9, seed=s) @ inputs).float() for s in (1, 2)]
    space = row_space(gradients)
    assert (space.rank, matrix_rank(gradients[0])) == (9, 9)
    assert space.outside(inputs).max() < 1e-5
    assert space.outside(drawn(20, WIDTH, seed=5)).min() > 0.5


def test_tensors_of_different_size_count_alike() -> None:
    small, large = drawn(1, WIDTH), drawn(1, WIDTH, seed=1)
    space = row_space([1e-4 * drawn(WIDTH, 1, seed=2) @ small, 1e3 * drawn(WIDTH, 1, seed=3) @ large])
    assert space.rank == 2
    assert space.outside(small) < 1e-9


def test_a_single_gradient_of_nothing_has_no_rank() -> None:
    assert matrix_rank(torch.zeros(4, 4)) == 0


@pytest.mark.parametrize("tall", [True, False])
def test_a_rough_spectrum_is_the_exact_one_nearly(tall: bool) -> None:
    matrix = gradients(12, 0.1).bfloat16().double()
    matrix = matrix if tall else matrix.T
    rough, exact = whiten(matrix, rough=True), whiten(matrix)
    assert rough.rank == exact.rank == 12
    torch.testing.assert_close(rough.values, exact.values, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(rough.signal(), exact.signal(), rtol=1e-3, atol=1e-3 * float(matrix.abs().max()))
