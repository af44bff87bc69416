"""The tokens of a batch where a table of positions is added to the words: all positions are projected out first.

The input is x(t, p) = γ ⊙ (E_t + P_p) / σ(t, p) + β. Positions are few and known; without their span, and that of β,
each row combines vectors γ ⊙ E_t of the vocabulary alone, and `token_pursuit.py` finds them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradleak.attacks.forest.residual import Residual, SiteNoise
from gradleak.attacks.forest.token_pursuit import pursue_tokens
from gradleak.exchange import Deadline
from gradleak.leakage.layer_inputs import LayerInputs

REACHES = (32, 64, 128, 256)
"""How many positions are projected out: first few, then more if the tokens found do not explain the rows."""


def pursue_positioned_tokens(
    inputs: LayerInputs, first: Residual, deadline: Deadline, *, noisy: bool = False
) -> tuple[list[int], bool]:
    """Return the tokens that explain a first layer's rows at some positions, and whether they explain them all.

    Args:
        inputs: the tables of x(t, p).
        first: the first layer's rows and their noise.
        deadline: when to return those found so far.
        noisy: whether to stop once most picks are doubtful, see `pursue_tokens`.
    """
    noise = first.noise
    picked: list[int] = []
    for reach in REACHES:
        most = inputs.width - min(reach, len(inputs.positions)) - 2
        if most < 1 or deadline.passed:
            break
        without = _projection(inputs, noise, reach)
        residual = Residual(without(first.rows), SiteNoise(noise.rows, noise.vectors))
        columns = 1.0 if noise.columns is None else noise.columns
        table = without(inputs.words * inputs.scale * columns)
        picked = pursue_tokens([table], [residual], min(most, 4 * residual.rank + 32), deadline, noisy=noisy)
        if residual.explained:
            return picked, True
        if reach >= len(inputs.positions):
            break
    return picked, False


def _projection(inputs: LayerInputs, noise: SiteNoise, reach: int) -> Callable[[Tensor], Tensor]:
    """Return a function that removes the span of the first positions, and of β, from vectors `[…, width]`."""
    columns = 1.0 if noise.columns is None else noise.columns
    known = torch.cat([inputs.positions[:reach] * inputs.scale, inputs.shift[None]]).double() * columns
    _, values, right = torch.linalg.svd(known, full_matrices=False)
    basis = right[values > 1e-6 * values[0]]
    return lambda vectors: vectors - (vectors @ basis.T.to(vectors)) @ basis.to(vectors)
