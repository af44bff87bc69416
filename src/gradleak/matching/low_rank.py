"""Observed gradients as a few outer products.

The gradient of a linear layer is a sum of one outer product for each token of the private batch, so that its rank is a
few dozen where the matrix has hundreds of rows: inner products with it then cost next to nothing. Noise and pruning
destroy the low rank, and such gradients stay the matrices they are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gradleak.matching.factors import LowRank, few_enough

# Directions that are looked for at once, and how much may be left out, in units of the number format's rounding.
BLOCK = 16
ROUNDING = 16


def outer_products(gradients: Tensor) -> LowRank | None:
    """Return matrices `[victims, outputs, inputs]` as outer products `[victims, 1, terms, …]`, if a few are enough.

    Victims whose gradients need fewer terms than others' get terms that are zero.
    """
    rows, columns = [], []
    for gradient in gradients:
        found = _factorise(gradient)
        if found is None:
            return None
        rows.append(found[0])
        columns.append(found[1])
    return LowRank(*(pad_sequence(side, batch_first=True)[:, None] for side in (rows, columns)))


def _factorise(gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return rows `[terms, outputs]` and columns `[terms, inputs]` whose outer products sum to the gradient.

    Random combinations of a matrix's columns span its range; block after block is taken out until the rest is rounding
    error (Halko, Martinsson and Tropp 2011, section 4.4). A rank is decided here, so all of it is float64.
    """
    rest = gradient.double()
    negligible = ROUNDING * torch.finfo(gradient.dtype).eps * rest.norm()
    generator = torch.Generator().manual_seed(0)
    rows: list[Tensor] = []
    columns: list[Tensor] = []
    while few_enough(BLOCK * (len(rows) + 1), *gradient.shape):
        random = torch.randn(gradient.shape[1], BLOCK, generator=generator, dtype=torch.float64)
        directions = torch.linalg.qr(rest @ random.to(rest.device)).Q  # [outputs, block]
        rows.append(directions.T)
        columns.append(directions.T @ rest)
        rest = rest - directions @ columns[-1]
        if rest.norm() <= negligible:
            return torch.cat(rows).to(gradient.dtype), torch.cat(columns).to(gradient.dtype)
    return None
