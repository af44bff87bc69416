"""From picked prefixes to texts: take back superfluous picks, and read the sentences off the forest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.attacks.forest.residual import coefficients

VANISHES = 1e-3
"""A prefix is superfluous if its coefficients are below this fraction of the largest, in the median over sites."""

EXPLAINED = 1e-3
"""Prefixes explain a site if less than this fraction of its rows is left."""


@dataclass(frozen=True)
class SolvedForest:
    """Prefixes and what they contribute to each site's rows.

    Attributes:
        prefixes: the prefixes.
        coefficients: by site, each prefix's coefficients in the rows `[prefixes, rows]`.
        left: by site, the fraction of the rows that they do not explain.
        sites: the indices of the sites.
    """

    prefixes: list[Prefix]
    coefficients: list[Tensor]
    left: list[float]
    sites: list[int]

    @property
    def explained(self) -> bool:
        """Whether the prefixes explain every site."""
        return max(self.left, default=1.0) < EXPLAINED

    @property
    def leaves(self) -> list[int]:
        """Indices of the prefixes that no other extends: the ends of texts."""
        inner = {prefix[:length] for prefix in self.prefixes for length in range(len(prefix))}
        return [number for number, prefix in enumerate(self.prefixes) if prefix not in inner]


def solve(
    prefixes: Sequence[Prefix], sites: list[int], rows: Sequence[Tensor], vectors: Sequence[Tensor]
) -> SolvedForest:
    """Solve for the prefixes' coefficients at every site.

    Args:
        prefixes: the prefixes.
        sites: the indices of the sites.
        rows: by site, the rows `[rows, width]`.
        vectors: by site, the prefixes' inputs `[prefixes, width]`.
    """
    solved = [coefficients(own, inputs) for own, inputs in zip(rows, vectors, strict=True)]
    return SolvedForest(list(prefixes), [one for one, _ in solved], [left for _, left in solved], sites)


def without_superfluous(
    prefixes: Sequence[Prefix], sites: list[int], rows: Sequence[Tensor], vectors: Sequence[Tensor]
) -> SolvedForest:
    """Return the forest without prefixes whose coefficients vanish; unless the others then explain less."""
    whole = solve(prefixes, sites, rows, vectors)
    shares = []
    for own, inputs in zip(whole.coefficients, vectors, strict=True):
        size = own.norm(dim=1) * inputs.double().norm(dim=1)
        shares.append(size / size.max().clamp(min=1e-300))
    weight = torch.stack(shares).median(dim=0).values
    kept = {prefixes[number] for number in (weight > VANISHES).nonzero().flatten().tolist()}
    closed = {prefix[:length] for prefix in kept for length in range(1, len(prefix) + 1)}
    numbers = [number for number, prefix in enumerate(prefixes) if prefix in closed]
    if len(numbers) == len(prefixes) or not numbers:
        return whole
    chosen = torch.tensor(numbers, device=weight.device)
    fewer = solve([prefixes[number] for number in numbers], sites, rows, [own[chosen] for own in vectors])
    return fewer if fewer.explained or not whole.explained else whole
