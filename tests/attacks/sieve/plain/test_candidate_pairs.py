"""The words of a batch are told from all others, however well its row space is known."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.plain.candidate_pairs import possible_pairs
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.row_space import Subspace
from wide_targets import wider_target

VOCABULARY = 2000
TOKENS = torch.tensor([2, 105, 907, 1300, 44, 1999, 650, 3])


def spanned(rows: torch.Tensor, noise: float) -> Subspace:
    """Return the span of rows to each of which noise of that fraction of its norm was added."""
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn *= rows.norm(dim=1, keepdim=True) / drawn.norm(dim=1, keepdim=True)
    basis = torch.linalg.qr((rows + noise * drawn).T)[0]
    return Subspace(basis, torch.linalg.svdvals(rows), floor=max(noise, 1e-9), error=noise)


@pytest.mark.parametrize(("noise", "most"), [(0.0, 8), (0.02, 8), (0.1, 8), (0.6, 60)])
def test_words_of_a_row_space_are_found_and_few_others(noise: float, most: int) -> None:
    inputs = first_layer_inputs(wider_target(vocab_size=VOCABULARY))
    space = spanned(inputs(TOKENS, torch.arange(len(TOKENS))).double(), noise)
    tokens, positions = possible_pairs(inputs, space, torch.arange(VOCABULARY), 40)
    pairs = set(zip(tokens.tolist(), positions.tolist(), strict=True))
    assert set(zip(TOKENS.tolist(), range(len(TOKENS)), strict=True)) <= pairs
    assert len(tokens.unique()) <= most


def test_a_space_of_noise_holds_few_words_at_any_position_or_none() -> None:
    inputs = first_layer_inputs(wider_target(vocab_size=VOCABULARY))
    tokens, _ = possible_pairs(inputs, spanned(torch.zeros(8, 96).double() + 1e-9, 1.0), torch.arange(VOCABULARY), 40)
    assert len(tokens.unique()) < 0.1 * VOCABULARY


def test_a_position_at_which_no_word_stands_out_ends_the_search() -> None:
    inputs = first_layer_inputs(wider_target(vocab_size=VOCABULARY))
    everything = Subspace(torch.eye(96, 60, dtype=torch.float64), torch.ones(96), floor=0.3, error=1.0)
    tokens, _ = possible_pairs(inputs, everything, torch.arange(VOCABULARY), 40)
    assert len(tokens) <= 6000
