"""Taking whole sentences out of a gradient under dropout, so that what is left of it is easier to read.

The more rows a row space holds, the fewer equations each mask has to meet. With some rows missing, the output gradients
Δ of those that were found are known only up to the missing ones': G X⁺ = Δ + L C, where the columns L of what the found
rows leave of G span the missing output gradients, and C is unknown. Attention tells C. The query gradient of a token is
Σ_j dS_ij k_j with Σ_j dS_ij = 0: in each head it lies in the span of the differences of its own sentence's keys, and
these are known for a sentence whose rows were all found. As a head has more numbers than a sentence has tokens, that is
a hundred equations for each row of C. A projection that annihilates the Δ of a sentence takes its rows out of the
space, and the few rows of unfinished sentences are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.subspace import Subspace, scaled_rows, span

WHOLE = 1e-3
"""Of a whole sentence's query gradients less than this share lies outside its keys: 1e-6, and 1e-2 if a row lacks."""

SURPLUS = 2
"""How many equations there must be for each unknown."""


def without_sentences(
    maps: Sequence[Tensor],
    rows: Tensor,
    keys: Tensor,
    sentences: Sequence[Sequence[int]],
    rank: int,
    error: float = 0.0,
) -> tuple[Subspace | None, list[Sequence[int]]]:
    """Return the row space of what whole sentences leave of a gradient, and which sentences are whole.

    Args:
        maps: gradients of the query, key and value maps `[outputs, width]`.
        rows: what the maps were fed, as far as it is known `[rows, width]`.
        keys: the rows' keys `[rows, heads, head width]`, whatever their common offset.
        sentences: the rows of each sentence.
        rank: how many rows there are, found or not.
        error: of the row space of the maps.
    """
    gradient = scaled_rows(maps)
    basis = torch.linalg.qr(rows.T)[0]
    missing = torch.linalg.svd(gradient - (gradient @ basis) @ basis.T, full_matrices=False)[0][:, : rank - len(rows)]
    each = gradient @ torch.linalg.pinv(rows)  # [outputs, rows]
    outputs = len(maps[0])
    whole, exact = [], []
    for sentence in sentences:
        own = each[:, list(sentence)]
        across = _across(keys[list(sentence)])  # [equations, outputs of the query map]
        if len(across) < SURPLUS * missing.shape[1]:
            continue
        share = torch.linalg.lstsq(across @ missing[:outputs], across @ own[:outputs]).solution
        own = own - missing @ share
        if float((across @ own[:outputs]).norm() / own[:outputs].norm()) < WHOLE:
            whole.append(sentence)
            exact.append(own / own.norm(dim=0))
    if not whole:
        return None, []
    settled = torch.linalg.qr(torch.cat(exact, dim=1))[0]
    return span(gradient - settled @ (settled.T @ gradient), rank - settled.shape[1], error), whole


def _across(keys: Tensor) -> Tensor:
    """Return an orthonormal basis of what the differences of a sentence's keys do not span `[left, heads · width]`."""
    tokens, heads, width = keys.shape
    differences = (keys[1:] - keys[:1]).permute(1, 2, 0)  # [heads, width, tokens − 1]
    if tokens > width:
        return keys.new_zeros(0, heads * width)
    left = torch.linalg.qr(differences, mode="complete")[0][:, :, tokens - 1 :]  # [heads, width, left]
    return torch.block_diag(*left).T  # type: ignore[no-untyped-call]
