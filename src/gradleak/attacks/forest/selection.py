"""From picked prefixes to texts: take back superfluous picks, and read the sentences off the forest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.attacks.forest.residual import coefficients

VANISHES = 1e-3
"""A prefix is superfluous if its coefficients are below this fraction of the largest, in the median over sites."""

SIGNIFICANT = 2.0
"""Under noise, a prefix is superfluous if the mean square of its coefficients is below this many times their variance,
a geometric mean over sites; noise alone makes 1."""

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


def significant(prefixes: Sequence[Prefix], rows: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[int]:
    """Return the indices of prefixes without those whose coefficients are no larger than noise makes them.

    Backward elimination: the least significant leaf is taken back, and the coefficients are solved for again. Two
    prefixes that resemble each other take each other's place, so that one of them goes, not both.

    Args:
        prefixes: the prefixes.
        rows: by site, rows of even noise `[rows, width]`.
        vectors: by site, the prefixes' inputs in the units of the rows `[prefixes, width]`.
    """
    kept = list(range(len(prefixes)))
    sites = [_NormalEquations.of(own, inputs) for own, inputs in zip(rows, vectors, strict=True)]
    while len(kept) > 1:
        inner = {prefixes[number][:-1] for number in kept}
        leaves = [place for place, number in enumerate(kept) if prefixes[number] not in inner]
        ratios = torch.stack([site.ratios(kept).log() for site in sites]).mean(dim=0)[leaves]
        if float(ratios.min()) > math.log(SIGNIFICANT):
            break
        del kept[leaves[int(ratios.argmin())]]
    return kept


@dataclass(frozen=True)
class _NormalEquations:
    """The normal equations of a site's rows as combinations of vectors.

    Attributes:
        gram: products of the vectors, each scaled to unit norm `[vectors, vectors]`.
        products: of the vectors with the rows `[vectors, rows]`.
        energy: the squared norm of the rows.
        width: the number of entries of a row.
    """

    gram: Tensor
    products: Tensor
    energy: float
    width: int

    @classmethod
    def of(cls, rows: Tensor, vectors: Tensor) -> _NormalEquations:
        unit = vectors.double() / vectors.double().norm(dim=1, keepdim=True).clamp(min=1e-300)
        return cls(unit @ unit.T, unit @ rows.T, float(rows.square().sum()), rows.shape[1])

    def ratios(self, kept: list[int]) -> Tensor:
        """Return the mean square of each vector's coefficients over their variance, if the others are kept `[kept]`."""
        gram, products = self.gram[kept][:, kept], self.products[kept]
        inverse = torch.linalg.pinv(gram, rtol=1e-10, hermitian=True)
        solved = inverse @ products
        height = products.shape[1]
        left = max(self.energy - float((solved * products).sum()), 1e-12 * self.energy)
        variance = left / (height * max(self.width - len(kept), 1)) * inverse.diagonal()
        return (solved.square().mean(dim=1) / variance.clamp(min=1e-300)).clamp(min=1e-300)
