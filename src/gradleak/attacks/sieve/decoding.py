"""Dropout masks by decoding: which entries of x(t, p) were dropped?

Under dropout the first map is fed x ⊙ m / (1 − rate) with an unknown mask m of bits. That vector lies in the row space
V exactly, so that x is a code word with a tenth of its entries erased, and V is the code. A vector that no mask brings
into V was not in the batch; one that a mask does was, and the mask tells one occurrence from another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.subspace import ROUNDING, Subspace

ACCEPTED = 1e-4
"""A mask is right if it leaves less than this share of ‖x ⊙ m‖ outside: right ones leave 1e-6, wrong ones 1e-1."""

STEPS = 80
"""Of the solver, in each round."""

SMOOTH = 0.2
"""How far from zero the share of an entry that was dropped must be to count as dropped in the next round."""

MOST_DROPPED = 0.4
HOPELESS = 0.3
"""Rounded masks that leave more than this share outside are not worth flipping bits of."""


@dataclass(frozen=True)
class Decoded:
    """Masks found for some vectors.

    Attributes:
        masks: True where an entry was kept `[vectors, width]`.
        outside: the share of ‖x ⊙ m‖ outside the row space `[vectors]`.
        tolerance: the share that a right mask may leave outside.
    """

    masks: Tensor
    outside: Tensor
    tolerance: float = ACCEPTED

    @property
    def accepted(self) -> Tensor:
        """Which vectors a mask brings into the row space."""
        return (self.outside < self.tolerance) & (self.masks.double().mean(dim=1) > 1 - MOST_DROPPED)


def accepted(space: Subspace) -> float:
    """Return the share of ‖x ⊙ m‖ that a right mask may leave outside a row space, whose rounding turns it."""
    return max(ACCEPTED, 3 * space.error)


def decode(vectors: Tensor, space: Subspace, *, rounds: int = 1, erased: Tensor | None = None) -> Decoded:
    """Find masks for vectors `[n, width]`.

    Args:
        vectors: x(t, p) of candidates.
        space: the row space.
        rounds: how often the relaxed problem is solved, each time with weights that follow from the last solution.
        erased: entries that shall have been dropped `[n, width]`: so another occurrence of the same token at the same
            position is looked for.
    """
    x = vectors.double()
    dropped = relaxed(x.float(), space.basis.float(), rounds, erased)
    masks = dropped.abs() < 0.5 * x.abs()
    found = Decoded(masks, space.outside(x * masks), accepted(space))
    open_case = (found.outside > ROUNDING) & (found.outside < HOPELESS)
    if open_case.any():
        flipped = flip_bits(x[open_case], masks[open_case], space)
        masks[open_case], found.outside[open_case] = flipped.masks, flipped.outside
    return found


def relaxed(x: Tensor, basis: Tensor, rounds: int = 1, erased: Tensor | None = None) -> Tensor:
    """Return what was dropped, e = x ⊙ (1 − m), with masks relaxed to [0, 1]: of all e with x − e in V the smallest.

    The smallest is that of least Σ w_j |e_j|. Alternating direction method of multipliers: a step is a projection to V
    and a clipping, so that hundreds of vectors cost two matrix products. Without the box, 0 ≤ e_j ≤ x_j, one pair in
    ten is lost where the tokens fill half of the space; w_j makes up for small entries saying little about m_j. Further
    rounds make it cheap to drop what the last one dropped (Candès, Wakin & Boyd 2008), for masks that drop many.
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


def flip_bits(x: Tensor, masks: Tensor, space: Subspace, most: int = 60) -> Decoded:
    """Flip the bit that lowers ‖(I − VVᵀ)(x ⊙ m)‖ most, as long as one does and at most so many."""
    basis = space.basis
    masks = masks.clone()
    projector = torch.eye(len(basis), dtype=basis.dtype, device=basis.device) - basis @ basis.T
    alone = x.square() * projector.diagonal()  # what an entry has outside by itself
    rest = (x * masks) @ projector
    rows = torch.arange(len(x), device=x.device)
    for _ in range(most):
        change = torch.where(masks, -x, x)
        gain, chosen = (2 * change * rest + alone).min(dim=1)
        better = gain < 0
        if not better.any():
            break
        rest = rest + torch.where(better, change[rows, chosen], 0.0)[:, None] * projector[chosen]
        masks[rows[better], chosen[better]] ^= True
    return Decoded(masks, space.outside(x * masks))
