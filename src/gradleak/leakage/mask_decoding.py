"""Decode dropout masks: which entries of x(t, p) were dropped?

Under dropout the input of the first maps is x ⊙ m / (1 − rate) with an unknown binary mask m. That vector lies in the
row space V exactly, so x is a code word with a tenth of its entries erased, and V is the code. A vector that no mask
brings into V was not in the batch; one that some mask does was, and the mask distinguishes its occurrences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.leakage.row_space import ROUNDING, Subspace

ACCEPTED = 1e-4
"""A mask is correct if it leaves less than this fraction of ‖x ⊙ m‖ outside: correct ones leave 1e-6, wrong ones
1e-1."""

ROUNDED = 1.5
"""Of a rounded row space correct masks leave this many times its error outside at most; those of words that resemble
one of the batch twice the error and more."""

UNEVEN, CLEAR = 4.0, 2e-3
"""Few tokens leave rounding that is larger in some rows: correct masks leave twice the error and more. So this many
times the error is accepted up to the second fraction. In a batch of hundreds of tokens, whose error is larger, other
masks of a right word would be accepted as well, and its further occurrences be missed."""

STEPS = 80
"""Iterations of the solver in each round."""

SMOOTH = 0.2
"""The dropped fraction of an entry at which its weight in the next round is halved."""

MOST_DROPPED = 0.4
"""A mask that drops more than this fraction of the entries is not accepted."""

HOPELESS = 0.3
"""Bits of rounded masks that leave more than this fraction outside are not worth flipping."""


@dataclass(frozen=True)
class DecodedMasks:
    """Masks found for some vectors.

    Attributes:
        masks: True where an entry was kept `[vectors, width]`.
        outside: the fraction of ‖x ⊙ m‖ outside the row space `[vectors]`.
        tolerance: the fraction that a correct mask may leave outside.
    """

    masks: Tensor
    outside: Tensor
    tolerance: float = ACCEPTED

    @property
    def accepted(self) -> Tensor:
        """Which vectors a mask brings into the row space `[vectors]`."""
        return (self.outside < self.tolerance) & (self.masks.double().mean(dim=1) > 1 - MOST_DROPPED)


def mask_tolerance(space: Subspace) -> float:
    """Return the fraction of ‖x ⊙ m‖ that a correct mask may leave outside, given the rounding of a row space."""
    return max(ACCEPTED, ROUNDED * space.error, min(UNEVEN * space.error, CLEAR))


def decode_masks(vectors: Tensor, space: Subspace, *, rounds: int = 1, erased: Tensor | None = None) -> DecodedMasks:
    """Find masks for vectors `[n, width]`.

    Args:
        vectors: x(t, p) of candidates.
        space: the row space.
        rounds: how often the relaxed problem is solved, each time with weights from the last solution.
        erased: entries that the mask must drop `[n, width]`, to find another occurrence of a token at a position.
    """
    x = vectors.double()
    dropped = relaxed_masks(x.float(), space.basis.float(), rounds, erased)
    masks = dropped.abs() < 0.5 * x.abs()
    found = DecodedMasks(masks, space.outside(x * masks), mask_tolerance(space))
    undecided = (found.outside > ROUNDING) & (found.outside < HOPELESS)
    if undecided.any():
        flipped = flip_bits(x[undecided], masks[undecided], space)
        masks[undecided], found.outside[undecided] = flipped.masks, flipped.outside
    return found


def relaxed_masks(x: Tensor, basis: Tensor, rounds: int = 1, erased: Tensor | None = None) -> Tensor:
    """Return the dropped part e = x ⊙ (1 − m) for masks relaxed to [0, 1]: the smallest e with x − e in V.

    The smallest is that of least Σ w_j |e_j|. It is found by the alternating direction method of multipliers: a step
    is a projection to V and a clipping, so hundreds of vectors cost two matrix products. Without the box constraint 0
    ≤ e_j ≤ x_j, one pair in ten is lost if the tokens fill half of the space; w_j compensates for small entries, which
    say little about m_j. Further rounds lower the weights of entries that the last one dropped (Candès, Wakin & Boyd
    2008), for masks that drop many.
    """
    size = x.abs().mean(dim=1, keepdim=True)
    most = x.abs()
    least = torch.zeros_like(x) if erased is None else most * erased
    threshold = 0.1 * size * size / torch.maximum(most, 0.1 * size)
    sign = x.sign()
    dropped, dual = sign * least, torch.zeros_like(x)
    for _ in range(rounds):
        weights = SMOOTH / (dropped.abs() / most.clamp(min=1e-12) + SMOOTH)
        for _ in range(STEPS):
            kept = ((x - dropped + dual) @ basis) @ basis.T
            wanted = sign * (x - kept + dual) - threshold * weights
            dropped = sign * torch.minimum(torch.maximum(wanted, least), most)
            dual = dual + (x - kept - dropped)
    return dropped


def flip_bits(x: Tensor, masks: Tensor, space: Subspace, most: int = 60) -> DecodedMasks:
    """Flip the bit that lowers ‖(I − VVᵀ)(x ⊙ m)‖ most, as long as one does, at most so many times."""
    basis = space.basis
    masks = masks.clone()
    projector = torch.eye(len(basis), dtype=basis.dtype, device=basis.device) - basis @ basis.T
    alone = x.square() * projector.diagonal()  # energy outside of each entry alone
    residual = (x * masks) @ projector
    rows = torch.arange(len(x), device=x.device)
    for _ in range(most):
        change = torch.where(masks, -x, x)
        gain, chosen = (2 * change * residual + alone).min(dim=1)
        better = gain < 0
        if not better.any():
            break
        residual = residual + torch.where(better, change[rows, chosen], 0.0)[:, None] * projector[chosen]
        masks[rows[better], chosen[better]] ^= True
    return DecodedMasks(masks, space.outside(x * masks))
