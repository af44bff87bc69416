"""Gradients kept as factors: their inner products, norms, and the matrix itself where nothing else will do.

A candidate's gradient of a weight matrix is a sum of outer products, Σ_k rows_k ⊗ columns_k, one for each token. Its
inner product with an observed gradient and its norm follow from the factors alone; the matrix itself, a thousand times
larger, is never built:

    ⟨dW, G⟩ = Σ_k rows_k · G columns_k          ‖dW‖² = Σ_{k,l} (rows_k · rows_l)(columns_k · columns_l)

Leading dimensions are always `[victims, candidates]`; what all candidates of a victim share, such as the observed
gradient, is stored once: `[victims, 1]`. Sums end in float64, because near the truth a distance is a small difference
of large sums. Rules make factors, `reductions.py` sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

# Outer products are kept instead of their sum where they save at least this factor of multiplications.
MIN_SAVING = 2


@dataclass(frozen=True)
class _Tensors:
    """Base of all factors: access to their tensors."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors of the factor, each `[victims, candidates, …]`."""
        return [value for value in vars(self).values() if torch.is_tensor(value)]

    @property
    def candidates(self) -> int:
        """Number of candidates of each victim."""
        return self.tensors[0].shape[1]

    @property
    def requires_grad(self) -> bool:
        """Whether any tensor of the factor requires a gradient."""
        return any(tensor.requires_grad for tensor in self.tensors)

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the factor with `change` applied to every tensor."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if torch.is_tensor(v)}
        return replace(self, **changed)


@dataclass(frozen=True)
class LowRank(_Tensors):
    """Σ_k rows_k ⊗ columns_k: the gradient of a linear layer's weight."""

    rows: Tensor  # [victims, candidates, terms, outputs]
    columns: Tensor  # [victims, candidates, terms, inputs]

    @property
    def terms(self) -> int:
        """Number of outer products of a candidate."""
        return self.rows.shape[2]

    def inner(self, observed: Tensor) -> Tensor:
        """Return the inner products `[victims, candidates]` with observed gradients `[victims, outputs, inputs]`."""
        flat = self.columns.flatten(1, 2)  # [victims, candidates × terms, inputs]
        projected = torch.matmul(flat, observed.transpose(1, 2)).view_as(self.rows)
        return _sum(self.rows * projected)

    def dense(self) -> Tensor:
        """Return the gradients themselves `[victims, candidates, outputs, inputs]`."""
        return torch.matmul(self.rows.transpose(-1, -2), self.columns)


@dataclass(frozen=True)
class LookupRows(_Tensors):
    """Σ_k e(index_k) ⊗ columns_k: the gradient of an embedding table of which single rows were looked up."""

    index: Tensor  # [victims, candidates, terms]
    columns: Tensor  # [victims, candidates, terms, width]
    height: int

    @property
    def terms(self) -> int:
        """Number of looked-up rows of a candidate."""
        return self.index.shape[2]

    def inner(self, observed: Tensor) -> Tensor:
        """Return the inner products with observed gradients `[victims, height, width]`."""
        victims = torch.arange(len(observed), device=observed.device)[:, None, None]
        return _sum(self.columns * observed[victims, self.index])

    def dense(self) -> Tensor:
        """Return the gradients themselves `[victims, candidates, height, width]`."""
        victims, candidates, terms, width = self.columns.shape
        table = self.columns.new_zeros(victims, candidates, self.height, width)
        return table.scatter_add(2, self.index[..., None].expand(victims, candidates, terms, width), self.columns)


@dataclass(frozen=True)
class Dense(_Tensors):
    """The gradient itself, for small parameters and those without a rule."""

    values: Tensor  # [victims, candidates, *shape]

    def inner(self, observed: Tensor) -> Tensor:
        """Return the inner products with observed gradients `[victims, *shape]`."""
        return _sum(self.values * observed[:, None])

    def dense(self) -> Tensor:
        """Return the gradients themselves."""
        return self.values


Factor = LowRank | LookupRows | Dense


def combine(factors: Sequence[Factor]) -> list[Factor]:
    """Merge the factors of a parameter from several calls of its layer into at most one of each kind."""
    if any(isinstance(factor, Dense) for factor in factors):
        return [Dense(dense(factors))]
    low_rank = [factor for factor in factors if isinstance(factor, LowRank)]
    rows = [factor for factor in factors if isinstance(factor, LookupRows)]
    merged: list[Factor] = []
    if low_rank:
        merged.append(LowRank(_join([f.rows for f in low_rank]), _join([f.columns for f in low_rank])))
    if rows:
        merged.append(LookupRows(_join([f.index for f in rows]), _join([f.columns for f in rows]), rows[0].height))
    return merged


def inner(factors: Sequence[Factor], shared: Sequence[Factor]) -> Tensor:
    """Return the inner products `[victims, candidates]` of a gradient with one that all candidates share."""
    return _added([_inner_with_shared(a, b) for a in factors for b in shared])


def squared_norm(factors: Sequence[Factor]) -> Tensor:
    """Return the squared norms `[victims, candidates]` of a parameter's gradient."""
    own = [_cross(factor, factor) for factor in factors]
    mixed = [2 * _cross(a, b) for i, a in enumerate(factors) for b in factors[i + 1 :]]
    return _added(own + mixed)


def dense(factors: Sequence[Factor]) -> Tensor:
    """Return a parameter's gradient itself `[victims, candidates, *shape]`."""
    return _added([factor.dense() for factor in factors])


def outer_products_are_cheaper(terms: int, outputs: int, inputs: int) -> bool:
    """Return whether inner products with this many outer products cost less than with their sum, the matrix."""
    return terms * (outputs + inputs) * MIN_SAVING <= outputs * inputs


def compact(factors: Sequence[Factor]) -> list[Factor]:
    """Return a gradient `[victims, 1, …]` in the form in which inner products cost least."""
    light = (
        not isinstance(f, LowRank) or outer_products_are_cheaper(f.terms, f.rows.shape[3], f.columns.shape[3])
        for f in factors
    )
    return list(factors) if all(light) else [Dense(dense(factors))]


def _inner_with_shared(factor: Factor, shared: Factor) -> Tensor:
    return factor.inner(shared.values[:, 0]) if isinstance(shared, Dense) else _cross(factor, shared)


def _cross(a: Factor, b: Factor) -> Tensor:
    """Return the inner products of two contributions to the same gradient, candidate by candidate."""
    if isinstance(a, Dense) or isinstance(b, Dense):
        return _sum(a.dense() * b.dense())
    if isinstance(a, LowRank) and a is b and _is_cheaper_dense(a):
        return _sum(a.dense().square())
    return _sum(_overlap(a, b) * _dots(a.columns, b.columns))


def _overlap(a: LowRank | LookupRows, b: LowRank | LookupRows) -> Tensor:
    """Return rows_k · rows_l `[victims, candidates, terms of a, terms of b]`."""
    if isinstance(a, LowRank) and isinstance(b, LowRank):
        return _dots(a.rows, b.rows)
    if isinstance(a, LookupRows) and isinstance(b, LookupRows):
        return (a.index[..., :, None] == b.index[..., None, :]).to(a.columns.dtype)
    if isinstance(a, LowRank) and isinstance(b, LookupRows):
        shape = (len(a.rows), max(a.candidates, b.candidates), a.terms)
        return a.rows.expand(*shape, -1).gather(3, b.index[:, :, None, :].expand(*shape, -1))
    return _overlap(b, a).transpose(-1, -2)


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """Return a_k · b_l `[victims, candidates, terms of a, terms of b]`; b may be shared by all candidates."""
    if b.shape[1] > 1 or a.shape[1] == 1:
        return torch.matmul(a, b.transpose(-1, -2))
    return torch.matmul(a.flatten(1, 2), b[:, 0].transpose(-1, -2)).view(*a.shape[:3], -1)


def _is_cheaper_dense(factor: LowRank) -> bool:
    """Return whether the matrix costs less than the terms' Gram matrices: many tokens, few features."""
    outputs, inputs = factor.rows.shape[3], factor.columns.shape[3]
    return factor.terms * (outputs + inputs) > 2 * outputs * inputs


def _added(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of at least one part without an addition to zero: this runs a hundred times a step."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=2)


def _sum(products: Tensor) -> Tensor:
    """Sum over all but `[victims, candidates]`: rows in their own precision, for speed, then in float64."""
    return (
        products.sum(dim=-1).flatten(2).sum(dim=2, dtype=torch.float64)
        if products.ndim > 3
        else products.sum(dim=-1, dtype=torch.float64)
    )
