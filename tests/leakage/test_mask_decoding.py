"""Masks are decoded from synthetic row spaces whose rows are known."""

from __future__ import annotations

import pytest
import torch

from gradleak.leakage.mask_decoding import decode_masks, flip_bits
from gradleak.leakage.row_space import Subspace, row_space

WIDTH = 96


def code(rows: int, repeated: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Subspace]:
    """Return vectors, their masks `[rows, width]`, and the space that the masked vectors span under any gradients."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    vectors[:repeated] = vectors[0]
    masks = torch.rand(rows, WIDTH, generator=generator) > 0.1
    gradients = torch.randn(2 * WIDTH, rows, generator=generator, dtype=torch.float64) @ (vectors * masks)
    return vectors, masks, row_space([gradients.float()])


@pytest.mark.parametrize("rows", [1, 10, 30])
def test_masks_are_decoded_bit_for_bit(rows: int) -> None:
    vectors, masks, space = code(rows)
    assert space.rank == rows
    found = decode_masks(vectors, space)
    assert found.accepted.all()
    differing = (found.masks ^ masks) & (vectors.abs() > 1e-4)
    assert not differing.any()


def test_vectors_that_were_not_in_the_batch_are_refused() -> None:
    _, _, space = code(30)
    others = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    found = decode_masks(others, space)
    assert not found.accepted.any()
    assert found.outside.min() > 1e-2


def test_forcing_an_entry_finds_another_occurrence_of_the_same_vector() -> None:
    vectors, masks, space = code(12, repeated=2)
    alone = (masks[0] & ~masks[1]).nonzero().flatten()  # dropped in the second occurrence only
    erased = torch.nn.functional.one_hot(alone, WIDTH).bool()
    found = decode_masks(vectors[:1].expand(len(alone), -1), space, erased=erased)
    assert found.accepted.any()
    assert not (found.masks[found.accepted] ^ masks[1]).any()


def test_flipping_bits_repairs_a_mask_with_a_few_wrong_ones() -> None:
    vectors, masks, space = code(10)
    spoiled = masks.clone()
    spoiled[:, [3, 40, 77]] ^= True
    found = flip_bits(vectors, spoiled, space)
    assert torch.equal(found.masks, masks)
    assert found.outside.max() < 1e-5
