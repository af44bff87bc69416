"""The sums that distances are made of, from factors where possible and from single entries where not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradleak.matching.distances import Distance, Sums
from gradleak.matching.factors import Dense, Factor, dense, inner, squared_norm

# Entries of candidates' gradients that are built at once, and how many of them are too many to be kept.
MOST_ENTRIES = 1 << 26
MANY_ENTRIES = 1 << 23


@dataclass(frozen=True)
class Observed:
    """One parameter's observed gradients, and what every candidate's gradient there contains already.

    Attributes:
        gradient: `[victims, *shape]`.
        squared: squared norms `[victims]`, float64.
        included: 1 where the tensor takes part in distances, 0 where it is numerically zero `[victims]`.
        fixed: the part of the candidates' gradients that stays the same `[victims, *shape]`, or None.
    """

    gradient: Tensor
    squared: Tensor
    included: Tensor
    fixed: Tensor | None = None

    def part(self, victims: slice) -> Observed:
        """Return some victims' gradients."""
        fixed = None if self.fixed is None else self.fixed[victims]
        return Observed(self.gradient[victims], self.squared[victims], self.included[victims], fixed)


def collect(factors: Mapping[str, Sequence[Factor]], observed: Mapping[str, Observed], distance: Distance) -> Sums:
    """Return all sums that `distance` needs `[parameters, victims, candidates]`."""
    whole = {name: _with_fixed(factors[name], seen) for name, seen in observed.items()}
    if distance.normalised:
        whole = _normalised(whole, observed)
    rows = [_sums(whole[name], seen, distance) for name, seen in observed.items()]
    shape = (len(rows), *rows[0]["inner"].shape)
    return Sums(
        **{key: torch.stack([row[key] for row in rows]) for key in rows[0]},
        observed=torch.stack([seen.squared for seen in observed.values()])[..., None].expand(shape),
        included=torch.stack([seen.included for seen in observed.values()])[..., None].expand(shape),
    )


@dataclass(frozen=True)
class _Gradient:
    """A parameter's gradient for each candidate: factors, plus what is the same for all candidates of a victim."""

    factors: Sequence[Factor]
    fixed: Dense | None  # [victims, 1, *shape]

    def scaled(self, factor: Tensor) -> _Gradient:
        # A fixed part that is scaled differs from candidate to candidate: it joins the factors.
        parts = [f.scaled(factor) for f in self.factors]
        if self.fixed is not None:
            parts.append(self.fixed.scaled(factor))
        return _Gradient(parts, None)

    def inner(self, observed: Tensor) -> Tensor:
        total = inner(self.factors, observed)
        return total if self.fixed is None else total + self.fixed.inner(observed)

    def squared_norm(self) -> Tensor:
        total = squared_norm(self.factors)
        if self.fixed is None:
            return total
        own = self.fixed.values.flatten(2).square().sum(dim=2, dtype=torch.float64)
        return total + 2 * inner(self.factors, self.fixed.values[:, 0]) + own

    def dense(self) -> Tensor:
        return dense(self.factors) if self.fixed is None else dense(self.factors) + self.fixed.values

    @property
    def candidates(self) -> int:
        return self.factors[0].candidates

    def part(self, candidates: slice) -> _Gradient:
        return _Gradient([_part(factor, candidates) for factor in self.factors], self.fixed)


def _with_fixed(factors: Sequence[Factor], seen: Observed) -> _Gradient:
    return _Gradient(factors, None if seen.fixed is None else Dense(seen.fixed[:, None]))


def _normalised(whole: Mapping[str, _Gradient], observed: Mapping[str, Observed]) -> dict[str, _Gradient]:
    """Scale every candidate's gradient to the observed norm, over all parameters together (GRAB, section 5.5.1)."""
    own = sum(whole[name].squared_norm() * seen.included[:, None] for name, seen in observed.items())
    wanted = sum((seen.squared * seen.included)[:, None] for seen in observed.values())
    assert isinstance(own, Tensor)
    dtype = next(iter(observed.values())).gradient.dtype
    factor = (wanted / own.clamp(min=1e-300)).sqrt().to(dtype)
    return {name: gradient.scaled(factor) for name, gradient in whole.items()}


def _sums(gradient: _Gradient, seen: Observed, distance: Distance) -> dict[str, Tensor]:
    sums = {"inner": gradient.inner(seen.gradient)}
    if not distance.needs_entries:
        return sums | {"candidate": gradient.squared_norm()}
    per_candidate = seen.gradient[:1].numel() * len(seen.gradient)
    step = max(1, MOST_ENTRIES // per_candidate)
    parts = [gradient.part(slice(i, i + step)) for i in range(0, sums["inner"].shape[1], step)]
    pieces = [_entry_sums_recomputed(part, seen.gradient, distance) for part in parts]
    return sums | {key: torch.cat([piece[key] for piece in pieces], dim=1) for key in pieces[0]}


def _entry_sums_recomputed(part: _Gradient, observed: Tensor, distance: Distance) -> dict[str, Tensor]:
    """Sum over entries; where they are many, the backward pass builds them again instead of keeping them."""
    needs_graph = torch.is_grad_enabled() and any(factor.requires_grad for factor in part.factors)
    if not needs_graph or part.candidates * observed.numel() < MANY_ENTRIES:
        return _entry_sums(part, observed, distance)
    result: dict[str, Tensor] = checkpoint(
        _entry_sums, part, observed, distance, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
    )
    return result


def _entry_sums(part: _Gradient, observed: Tensor, distance: Distance) -> dict[str, Tensor]:
    entries = part.dense()
    seen = observed[:, None]
    if distance.kept_only:
        entries = entries * (seen != 0)
    sums = {"candidate": _total(entries.square())}
    if "absolute" in distance.entry_sums:
        sums["absolute"] = _total((entries - seen).abs())
    if "violation" in distance.entry_sums:
        violation = (-entries * seen.sign()).clamp(min=0)
        sums |= {"violation": _total(violation), "squared_violation": _total(violation.square())}
    return sums


def _total(entries: Tensor) -> Tensor:
    return entries.flatten(2).sum(dim=2, dtype=torch.float64)


def _part(factor: Factor, candidates: slice) -> Factor:
    changed: dict[str, Any] = {k: v[:, candidates] for k, v in vars(factor).items() if torch.is_tensor(v)}
    return replace(factor, **changed)
