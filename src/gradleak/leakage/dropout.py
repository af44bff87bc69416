"""Did the client use dropout? Told from the row space of the first layer."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.leakage.layer_inputs import LayerInputs
from gradleak.leakage.mask_decoding import decode_masks
from gradleak.leakage.row_space import CLEAN, Subspace
from gradleak.targets import Target

NO_DROPOUT = 1e-3
"""Without dropout less than this fraction of the first token's x lies outside the row space of a float32 gradient; with
dropout about 0.1, and 0.01 for a token that begins twenty sentences, each with another mask."""

PLACES, TOKENS = 7, 24
"""A rounded row space: how many positions are looked at, and how many of the words that fit best at each."""

DROPPED, EXPLAINED = 0.05, 0.2
"""Dropout leaves more than the first fraction of the best words' x outside, and masks explain it: they leave less than
the second fraction of that, mostly a hundredth. What rounding and steps of Adam leave, masks do not explain."""


def dropout_is_off(target: Target, inputs: LayerInputs, space: Subspace) -> bool:
    """Return whether tokens lie in the row space without any entry dropped.

    Of a float32 gradient the first position tells. A rounded row space contains no x exactly: there the words that fit
    best are decoded (`mask_decoding.py`), and dropout is on if masks bring them much closer.
    """
    if space.floor < CLEAN or inputs.dropout_before_norm:
        first = target.special_tokens[0][:1] or range(len(target.word_embeddings))
        return _outside(inputs, space, torch.tensor(list(first), device=target.device), 0)[0] < NO_DROPOUT
    words = torch.arange(len(target.word_embeddings), device=target.device)
    places = range(min(PLACES, inputs.positions.shape[0]))
    outside = torch.tensor([_with_and_without_mask(inputs, space, words, place) for place in places])
    whole, masked = outside.median(dim=0).values.tolist()
    return not (whole > DROPPED and masked < EXPLAINED * whole)


def _outside(inputs: LayerInputs, space: Subspace, tokens: Tensor, position: int) -> tuple[float, Tensor]:
    """Return the least fraction of x outside the row space at a position, and the x of the tokens that fit best."""
    place = torch.tensor([position], device=tokens.device)
    best = inputs.captured_energy(space.basis, tokens, place)[:, 0].topk(min(TOKENS, len(tokens))).indices
    vectors = inputs(tokens[best], place.expand(len(best)))
    return float(space.outside(vectors).min()), vectors


def _with_and_without_mask(inputs: LayerInputs, space: Subspace, words: Tensor, position: int) -> tuple[float, float]:
    """Return the least fraction of x outside the row space at a position, without a mask and with the best one."""
    whole, vectors = _outside(inputs, space, words, position)
    return whole, float(decode_masks(vectors, space).outside.min())
