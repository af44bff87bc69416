"""Sums over single entries of gradients, which must be built for it, read as rarely as possible.

A weight matrix has a thousand times more entries than the factors that make it: on any device the time goes into
reading and writing them. Left to itself, autograd would keep and read a copy for every operation.
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
        kept_only: leave out entries that are zero in the observed gradient.
    """
    sums: tuple[Tensor, Tensor] = _DifferenceSums.apply(entries, observed, kept_only)  # type: ignore[no-untyped-call]
    return sums


def row_difference_sums(index: Tensor, columns: Tensor, observed: Tensor, *, kept_only: bool) -> tuple[Tensor, Tensor]:
    """Return by how much ‖table − observed‖₁ and ‖table − observed‖² exceed ‖observed‖₁ and ‖observed‖².

    Both `[victims, candidates]` and in float64. A table is zero but for a few rows, and only these are read.

    Args:
        index: numbers of rows `[victims, candidates, terms]`; what is given for one row several times adds up.
        columns: what stands in them `[victims, candidates, terms, width]`.
        observed: whole tables `[victims, height, width]`.
        kept_only: leave out entries that are zero in the observed table.
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
    """Keeps one copy of the difference for the slopes of both sums."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, observed: Tensor, kept_only: bool) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        seen = observed[:, None]
        difference = entries - seen
        if kept_only:
            difference.mul_(seen != 0)
        ctx.save_for_backward(difference)
        return _total(difference, 1), _total(difference, 2)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (difference,) = ctx.saved_tensors
        absolute, squared = (
            slope.to(difference.dtype).view(*slope.shape, *[1] * (difference.ndim - 2)) for slope in slopes
        )
        found = difference.sign().mul_(absolute)
        return found.addcmul_(difference, 2 * squared), None, None


def _total(difference: Tensor, order: int) -> Tensor:
    """Sum over rows in the entries' own precision, and over the rows' sums in float64."""
    rows = torch.linalg.vector_norm(difference, order, dim=-1)
    sums = (rows if order == 1 else rows.square()).to(torch.float64)
    return sums.flatten(2).sum(dim=2) if sums.ndim > 2 else sums
