"""`Sums` of candidates' gradients, from factors where possible and from single entries where not.

`Matcher` and `ClassifierMatcher` call `collect` on the factors of a pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.matching.distances import Cosine, Distance, Sums
from gradleak.matching.elementwise import difference_sums, row_difference_sums
from gradleak.matching.factors import Dense, Factor, LookupRows, LowRank, combine, dense, inner, squared_norm
from gradleak.matching.kernels.dispatch import fused_sums, fused_sums_fit

# Entries of candidates' gradients that are built at once; on a CPU, as many as its cache holds until they are read.
MAX_ENTRIES_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 26}


@dataclass(frozen=True)
class Observed:
    """One parameter's observed gradients, and the part of the candidates' gradients that is fixed.

    Attributes:
        gradient: `[victims, *shape]`.
        squared: squared norms `[victims]`, float64.
        absolute: sums of absolute values `[victims]`, float64.
        included: 1 where the tensor is compared, 0 where it is numerically zero `[victims]`.
        outer: the same gradient as a few outer products `[victims, 1, terms, …]`, if its rank is low.
        fixed: the part that all candidates' gradients share `[victims, 1, …]`.
    """

    gradient: Tensor
    squared: Tensor
    absolute: Tensor
    included: Tensor
    outer: LowRank | None = None
    fixed: Sequence[Factor] = ()

    @classmethod
    def of(cls, gradient: Tensor) -> Observed:
        """Return gradients `[victims, *shape]` with their sums, all included."""
        flat = gradient.flatten(1)
        squared = flat.square().sum(dim=1, dtype=torch.float64)
        absolute = flat.abs().sum(dim=1, dtype=torch.float64)
        return cls(gradient, squared, absolute, torch.ones_like(squared))

    @property
    def factor(self) -> Factor:
        """The gradient in the form in which inner products cost least."""
        return self.outer or Dense(self.gradient[:, None])

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors in memory, whatever the number of candidates."""
        factors = [self.factor, *self.fixed]
        return [self.gradient, *(tensor for factor in factors for tensor in factor.tensors)]

    def select(self, victims: slice | Tensor) -> Observed:
        """Return some victims' gradients: views for a slice, copies for indices."""
        if isinstance(victims, slice) and victims == slice(0, len(self.gradient)):
            return self
        outer = None if self.outer is None else self.outer.each(lambda tensor: tensor[victims])
        fixed = [factor.each(lambda tensor: tensor[victims]) for factor in self.fixed]
        return replace(
            self,
            gradient=self.gradient[victims],
            squared=self.squared[victims],
            absolute=self.absolute[victims],
            included=self.included[victims],
            outer=outer,
            fixed=fixed,
        )


def collect(factors: Mapping[str, Sequence[Factor]], observed: Mapping[str, Observed], distance: Distance) -> Sums:
    """Return all sums that `distance` needs `[parameters, victims, candidates]`."""
    gradients = {name: _Gradient(factors[name], seen.fixed) for name, seen in observed.items()}
    if distance.normalised:
        gradients = _normalised(gradients, observed, distance)
    rows: dict[str, dict[str, Tensor]] = {}
    for names in _summed_together(gradients, distance):
        group, seen = [gradients[name] for name in names], [observed[name] for name in names]
        if len(names) == 1:
            rows[names[0]] = _sums(group[0], seen[0], distance)
        else:
            rows |= zip(names, _vector_sums(group, seen), strict=True)
    sums = {key: torch.stack([rows[name][key] for name in observed]) for key in rows[next(iter(observed))]}
    some = next(iter(sums.values()))
    shape, unknown = some.shape, some.new_full((), torch.nan).expand(some.shape)
    return Sums(
        **{"inner": unknown, "candidate": unknown} | sums,
        observed=torch.stack([seen.squared for seen in observed.values()])[..., None].expand(shape),
        included=torch.stack([seen.included for seen in observed.values()])[..., None].expand(shape),
    )


@dataclass(frozen=True)
class _Gradient:
    """A parameter's gradient for each candidate: its own factors plus those that all candidates of a victim share.

    Attributes:
        factors: `[victims, candidates, …]`.
        fixed: shared factors `[victims, 1, …]`.
        scale: multiplier of the whole gradient `[victims, candidates]`, or None.
    """

    factors: Sequence[Factor]
    fixed: Sequence[Factor]
    scale: Tensor | None = None

    def inner(self, observed: Factor) -> Tensor:
        total = inner(self.factors, [observed])
        if self.fixed:
            total = total + inner(self.fixed, [observed])
        return total if self.scale is None else total * self.scale

    def squared_norm(self) -> Tensor:
        total = squared_norm(self.factors)
        if self.fixed:
            total = total + 2 * inner(self.factors, self.fixed) + squared_norm(self.fixed)
        return total if self.scale is None else total * self.scale.square()

    def dense(self) -> Tensor:
        total = dense(self.factors)
        if self.fixed:
            total = total + dense(self.fixed)
        if self.scale is None:
            return total
        return total * self.scale.to(total.dtype).view(*self.scale.shape, *[1] * (total.ndim - 2))

    def select(self, candidates: slice) -> _Gradient:
        factors = [factor.each(lambda tensor: tensor[:, candidates]) for factor in self.factors]
        return _Gradient(factors, self.fixed, None if self.scale is None else self.scale[:, candidates])


def _normalised(
    gradients: Mapping[str, _Gradient], observed: Mapping[str, Observed], distance: Distance
) -> dict[str, _Gradient]:
    """Scale every candidate's gradient to the observed norm, over all parameters together (GRAB, section 5.5.1).

    With `kept_only`, norms are those of the entries that pruning left.
    """

    def squared_norm_of(name: str, seen: Observed) -> Tensor:
        if distance.kept_only:
            return _sums_by_parts(gradients[name], seen, Cosine(kept_only=True))["candidate"]
        return gradients[name].squared_norm()

    own = sum(squared_norm_of(name, seen) * seen.included[:, None] for name, seen in observed.items())
    wanted = sum((seen.squared * seen.included)[:, None] for seen in observed.values())
    assert isinstance(own, Tensor)
    scale = (wanted / own.clamp(min=1e-300)).sqrt()
    return {name: replace(gradient, scale=scale) for name, gradient in gradients.items()}


def _sums(gradient: _Gradient, seen: Observed, distance: Distance) -> dict[str, Tensor]:
    if "absolute" in distance.entry_sums:
        return (
            _lookup_sums(gradient, seen, distance)
            or _fused_sums(gradient, seen, distance)
            or _sums_by_parts(gradient, seen, distance)
        )
    sums = {"inner": gradient.inner(seen.factor)}
    if distance.needs_entries:
        return sums | _sums_by_parts(gradient, seen, distance)
    return sums | {"candidate": gradient.squared_norm()}


def _summed_together(gradients: Mapping[str, _Gradient], distance: Distance) -> list[list[str]]:
    """Return the parameters in groups to sum at once: vectors of one length together, matrices alone."""
    groups: dict[Hashable, list[str]] = {}
    for name, gradient in gradients.items():
        values = [factor.values for factor in (*gradient.factors, *gradient.fixed) if isinstance(factor, Dense)]
        parts = len(gradient.factors), len(gradient.fixed)
        vector = len(values) == sum(parts) and parts[0] == 1 and parts[1] <= 1 and values[0].ndim == 3
        key: Hashable = (parts, values[0].shape) if vector and not distance.needs_entries else name
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _vector_sums(gradients: Sequence[_Gradient], seen: Sequence[Observed]) -> list[dict[str, Tensor]]:
    """Return each parameter's sums, computed at once by stacking parameters along the victims' dimension.

    Half of a model's parameters are vectors; one by one, their sums would take as long as those of all matrices.
    """

    def joined(factors: Iterable[Sequence[Factor]]) -> list[Factor]:
        return [Dense(torch.cat([factor.dense() for factor in same])) for same in zip(*factors, strict=True)]

    scales = [gradient.scale for gradient in gradients if gradient.scale is not None]
    together = _Gradient(
        joined(gradient.factors for gradient in gradients),
        joined(gradient.fixed for gradient in gradients),
        torch.cat(scales) if scales else None,
    )
    observed = Dense(torch.cat([one.gradient for one in seen])[:, None])
    inner, candidate = (
        sums.view(len(seen), -1, sums.shape[1]).unbind() for sums in (together.inner(observed), together.squared_norm())
    )
    return [{"inner": a, "candidate": b} for a, b in zip(inner, candidate, strict=True)]


def _lookup_sums(gradient: _Gradient, seen: Observed, distance: Distance) -> dict[str, Tensor] | None:
    """Return the sums of a table from the rows that candidates look up; None if the gradient is no lookup.

    Rows not looked up are zero, so they contribute the norm of the observed row.
    """
    if not all(isinstance(factor, LookupRows) for factor in (*gradient.factors, *gradient.fixed)):
        return None
    shape = (-1, gradient.factors[0].candidates)
    fixed = [factor.each(lambda tensor: tensor.expand(*shape, *tensor.shape[2:])) for factor in gradient.fixed]
    (table,) = combine([*gradient.factors, *fixed])
    assert isinstance(table, LookupRows)
    scale = gradient.scale
    columns = table.columns if scale is None else table.columns * scale.to(table.columns.dtype)[..., None, None]
    found = row_difference_sums(table.index, columns, seen.gradient, kept_only=distance.kept_only)
    return {"absolute": found[0] + seen.absolute[:, None], "difference": found[1] + seen.squared[:, None]}


def _fused_sums(gradient: _Gradient, seen: Observed, distance: Distance) -> dict[str, Tensor] | None:
    """Return the sums by a fused GPU kernel, without building entries; None where there is none for the gradient."""
    (factor, *others), fixed, scale = gradient.factors, gradient.fixed, gradient.scale
    if others or not isinstance(factor, LowRank):
        return None
    if fixed and (
        distance.kept_only or scale is not None
    ):  # the fixed part cannot be subtracted from the observed gradient
        return None
    if not fused_sums_fit(factor, kept_only=distance.kept_only):
        return None
    observed = seen.gradient - dense(fixed)[:, 0] if fixed else seen.gradient
    rows = factor.rows if scale is None else factor.rows * scale.to(factor.rows.dtype)[..., None, None]
    absolute, squared = fused_sums(rows, factor.columns, observed, kept_only=distance.kept_only)
    return {"absolute": absolute, "difference": squared}


def _sums_by_parts(gradient: _Gradient, seen: Observed, distance: Distance) -> dict[str, Tensor]:
    """Return the sums from entries, built for a few candidates at a time."""
    limit = MAX_ENTRIES_AT_ONCE.get(seen.gradient.device.type, MAX_ENTRIES_AT_ONCE["cuda"])
    step = max(1, limit // seen.gradient.numel())
    parts = [gradient.select(slice(i, i + step)) for i in range(0, gradient.factors[0].candidates, step)]
    pieces = [_entry_sums(part, seen, distance) for part in parts]
    return {key: torch.cat([piece[key] for piece in pieces], dim=1) for key in pieces[0]}


def _entry_sums(part: _Gradient, seen: Observed, distance: Distance) -> dict[str, Tensor]:
    entries = part.dense()
    if "absolute" in distance.entry_sums:
        absolute, squared = difference_sums(entries, seen.gradient, kept_only=distance.kept_only)
        return {"absolute": absolute, "difference": squared}
    observed = seen.gradient[:, None]
    if distance.kept_only:
        entries = entries * (observed != 0)
    sums = {"candidate": _total(entries.square())}
    if "violation" in distance.entry_sums:
        violation = (-entries * observed.sign()).clamp(min=0)
        sums |= {"violation": _total(violation), "squared_violation": _total(violation.square())}
    return sums


def _total(entries: Tensor) -> Tensor:
    return entries.flatten(2).sum(dim=2, dtype=torch.float64)
