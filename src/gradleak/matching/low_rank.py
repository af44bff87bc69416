"""Observed gradients as a few outer products, which makes `Matcher`'s inner products with them nearly free.

The gradient of a linear layer is a sum of one outer product for each token of the private batch: its rank is a few
dozen where the matrix has hundreds of rows. Noise and pruning destroy the low rank; such gradients stay matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gradleak.matching.factors import LowRank, outer_products_are_cheaper

BLOCK_SIZE = 16  # directions extracted at once
RESIDUAL_EPS = 16  # tolerated relative residual, in units of the number format's eps
STALLED = 0.85
"""A residual that keeps more than this fraction of its energy through two blocks is noise: its rank is too high."""


def outer_products(gradients: Tensor) -> LowRank | None:
    """Return matrices `[victims, outputs, inputs]` as outer products `[victims, 1, terms, …]`.

    The result is None if the rank is too high for them to be cheaper than the matrix. Victims whose
    gradients need fewer terms than others' are padded with zero terms.
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

    Random combinations of a matrix's columns span its range; blocks of them are deflated until the residual is rounding
    error (Halko, Martinsson and Tropp 2011, section 4.4). All in float64, because it decides a rank.
    """
    residual = gradient.double()
    tolerance = RESIDUAL_EPS * torch.finfo(gradient.dtype).eps * residual.norm()
    generator = torch.Generator().manual_seed(0)
    rows: list[Tensor] = []
    columns: list[Tensor] = []
    energies = [float(residual.square().sum())]
    while outer_products_are_cheaper(BLOCK_SIZE * (len(rows) + 1), *gradient.shape):
        random = torch.randn(gradient.shape[1], BLOCK_SIZE, generator=generator, dtype=torch.float64)
        directions = torch.linalg.qr(residual @ random.to(residual.device)).Q  # [outputs, block]
        rows.append(directions.T)
        columns.append(directions.T @ residual)
        residual = residual - directions @ columns[-1]
        energies.append(float(residual.square().sum()))
        if energies[-1] ** 0.5 <= tolerance:
            return torch.cat(rows).to(gradient.dtype), torch.cat(columns).to(gradient.dtype)
        if len(energies) > 3 and energies[-1] > STALLED * energies[-3]:
            return None
    return None
