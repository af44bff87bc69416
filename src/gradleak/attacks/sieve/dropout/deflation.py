"""Remove complete sentences from a gradient under dropout; the remainder has a smaller row space and is easier to read.

The more rows a row space has, the fewer equations constrain each mask. If some rows are missing, the output gradients
Δ of the rows found are known only up to those of the missing ones: G X⁺ = Δ + L C, where the columns L of the part of
G outside the rows found span the missing output gradients, and C is unknown. Attention determines C. The query
gradient of a token is Σ_j dS_ij k_j with Σ_j dS_ij = 0: in each head it lies in the span of the differences of its
sentence's keys, and these are known for a sentence whose rows were all found. As a head is wider than a sentence has
tokens, this gives a hundred equations for each row of C. A projection that annihilates the Δ of a sentence removes its
rows from the space, and the few rows of incomplete sentences remain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.leakage.row_space import Subspace, scaled_rows, span

COMPLETE = 1e-3
"""Less than this fraction of a complete sentence's query gradients lies outside its keys: 1e-6, and 1e-2 if a row is
missing."""

SURPLUS = 2
"""How many equations there must be for each unknown."""


def without_sentences(
    maps: Sequence[Tensor],
    rows: Tensor,
    keys: Tensor,
    sentences: Sequence[Sequence[int]],
    space: Subspace,
) -> tuple[Subspace | None, list[Sequence[int]]]:
    """Return the row space of a gradient without its complete sentences, and which sentences are complete.

    Args:
        maps: gradients of the query, key and value maps `[outputs, width]`.
        rows: the inputs of the maps found so far `[rows, width]`.
        keys: the rows' keys `[rows, heads, head width]`, up to a common offset.
        sentences: the indices of each sentence's rows.
        space: the row space of the maps, of as many dimensions as there are rows, found or not.
    """
    gradient = scaled_rows(maps)
    basis = torch.linalg.qr(rows.T)[0]
    residual = gradient - (gradient @ basis) @ basis.T
    missing = torch.linalg.svd(residual, full_matrices=False)[0][:, : space.rank - len(rows)]
    each = gradient @ torch.linalg.pinv(rows)  # [outputs, rows]
    outputs = len(maps[0])
    complete, exact = [], []
    for sentence in sentences:
        own = each[:, list(sentence)]
        across = _key_complement(keys[list(sentence)])  # [equations, outputs of the query map]
        if len(across) < SURPLUS * missing.shape[1]:
            continue
        share = torch.linalg.lstsq(across @ missing[:outputs], across @ own[:outputs]).solution
        own = own - missing @ share
        if float((across @ own[:outputs]).norm() / own[:outputs].norm()) < COMPLETE:
            complete.append(sentence)
            exact.append(own / own.norm(dim=0))
    if not complete:
        return None, []
    removed = torch.linalg.qr(torch.cat(exact, dim=1))[0]
    rest = gradient - removed @ (removed.T @ gradient)
    return span(rest, space.rank - removed.shape[1], space.error), complete


def _key_complement(keys: Tensor) -> Tensor:
    """Return an orthonormal basis of the complement of a sentence's key differences `[left, heads · width]`."""
    tokens, heads, width = keys.shape
    differences = (keys[1:] - keys[:1]).permute(1, 2, 0)  # [heads, width, tokens − 1]
    if tokens > width:
        return keys.new_zeros(0, heads * width)
    left = torch.linalg.qr(differences, mode="complete")[0][:, :, tokens - 1 :]  # [heads, width, left]
    return torch.block_diag(*left).T  # type: ignore[no-untyped-call]
