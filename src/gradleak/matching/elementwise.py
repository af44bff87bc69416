"""Sums over single entries of gradients that must be built, read from memory as rarely as possible.

A weight matrix has a thousand times more entries than its factors: on any device the time goes into reading and writing
them. Plain autograd would keep and read a copy for every operation. Used by `reductions.py` for L1 distances.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def difference_sums(entries: Tensor, observed: Tensor, *, kept_only: bool) -> tuple[Tensor, Tensor]:
    """Return ‖entries − observed‖₁ and ‖entries − observed‖² `[victims, candidates]` in float64.

    Args:
        entries: candidates' gradients `[victims, candidates, *shape]`.
        observed: `[victims, *shape]`.
        kept_only: ignore entries that are zero in the observed gradient.
    """
    sums: tuple[Tensor, Tensor] = _DifferenceSums.apply(entries, observed, kept_only)  # type: ignore[no-untyped-call]
    return sums


def row_difference_sums(index: Tensor, columns: Tensor, observed: Tensor, *, kept_only: bool) -> tuple[Tensor, Tensor]:
    """Return ‖table − observed‖₁ − ‖observed‖₁ and ‖table − observed‖² − ‖observed‖².

    Both `[victims, candidates]` and in float64. A table is zero except in a few rows, and only those are read.

    Args:
        index: row numbers `[victims, candidates, terms]`; values given several times for one row add up.
        columns: values of those rows `[victims, candidates, terms, width]`.
        observed: whole tables `[victims, height, width]`.
        kept_only: ignore entries that are zero in the observed table.
    """
    same = index[..., :, None] == index[..., None, :]
    is_first = ~same.tril(diagonal=-1).any(dim=-1)  # each row counts once
    victims = torch.arange(len(observed), device=observed.device)[:, None, None]
    seen = observed[victims, index]
    difference = torch.matmul(same.to(columns.dtype), columns) - seen
    if kept_only:
        difference = difference * (seen != 0)
    absolute = difference.abs().sum(dim=-1, dtype=torch.float64) - seen.abs().sum(dim=-1, dtype=torch.float64)
    squared = difference.square().sum(dim=-1, dtype=torch.float64) - seen.square().sum(dim=-1, dtype=torch.float64)
    return (absolute * is_first).sum(dim=-1), (squared * is_first).sum(dim=-1)


class _DifferenceSums(torch.autograd.Function):
    """Both sums, with one saved copy of the difference for both gradients."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, observed: Tensor, kept_only: bool) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        seen = observed[:, None]
        difference = entries - seen
        if kept_only:
            difference.mul_(seen != 0)
        ctx.save_for_backward(difference)
        return _total(difference, 1), _total(difference, 2)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (difference,) = ctx.saved_tensors
        absolute, squared = (
            grad.to(difference.dtype).view(*grad.shape, *[1] * (difference.ndim - 2)) for grad in grad_outputs
        )
        found = difference.sign().mul_(absolute)
        return found.addcmul_(difference, 2 * squared), None, None


def _total(difference: Tensor, order: int) -> Tensor:
    """Sum rows in the entries' own precision, then the rows' sums in float64."""
    rows = torch.linalg.vector_norm(difference, order, dim=-1)
    sums = (rows if order == 1 else rows.square()).to(torch.float64)
    return sums.flatten(2).sum(dim=2) if sums.ndim > 2 else sums
