"""Grow the forest of prefixes: which token follows which, judged by all layers together.

What enters a layer at a place depends only on the prefix that ends there, so that the vectors which a deeper site's
rows combine are prefixes. Candidates are the prefixes found so far, and the empty one, extended by the tokens of the
first layer. Where a site shows its whole row space (fewer tokens than rows and columns) each candidate is tested by
itself (`grow_by_membership`); where it does not, the best are picked one by one and projected out of all sites' rows
(`grow_by_pursuit`), and picks that turn out superfluous are taken back at the end (`selection.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import REPEATS, Prefix, PrefixInputs, is_repeat
from gradleak.attacks.forest.residual import Residual
from gradleak.exchange import Deadline

MOST = 6
"""Sites that test a candidate of a membership growth, at most; the first of them alone rejects most."""

MEMBER = 0.02
"""A prefix belongs to the batch if the geometric mean over sites of the fraction outside the row space is below this.
True ones reach 1e-6 to 1e-3, and near N = d wrong ones stay above 0.05."""

PASSES = 0.1
"""The same for the first, quick test by one site."""

TOGETHER = 4
"""Picks of a pursuit between two extensions, at most."""

CLEARLY = 0.7
"""A further pick before the next extension scores at least this fraction of the first."""

FADED = 0.1
"""In an update with visible noise, picking ends at scores below this fraction of the median pick's; true prefixes keep
half of it and more, what noise offers has a hundredth."""

DONE = 3e-5
"""A site is explained if less than this fraction of its rows is left."""

TokensAt = Callable[[int], Tensor]
"""Returns the tokens that may stand at a position."""


def grow_by_membership(
    inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], tokens_at: TokensAt, deadline: Deadline
) -> list[Prefix]:
    """Return all prefixes whose inputs lie in the row spaces, shorter ones first.

    Args:
        inputs: computes the inputs.
        residuals: the rows of each of `sites`.
        sites: indices of sites that show their whole row space.
        tokens_at: the tokens that may stand at a position.
        deadline: when to return the prefixes found so far.
    """
    found: list[Prefix] = []
    level: list[Prefix] = [()]
    while level and not deadline.passed:
        tokens = tokens_at(len(level[0]))
        if not len(tokens) or len(level[0]) >= inputs.target.max_length:
            break
        grown: list[Prefix] = []
        for start in range(0, len(level), 8):
            if deadline.passed:
                break
            grown += _members(inputs, residuals, sites, level[start : start + 8], tokens)
        level = [prefix for prefix in grown if not (is_repeat(prefix) and len(prefix) > REPEATS)]
        found += level
    followed = {prefix[:length] for prefix in found if not is_repeat(prefix) for length in range(len(prefix))}
    return [prefix for prefix in found if not is_repeat(prefix) or prefix in followed]


def _members(
    inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], prefixes: list[Prefix], tokens: Tensor
) -> list[Prefix]:
    outside = _outside(inputs, residuals[:1], sites[:1], prefixes, tokens)
    passing = [
        (number // len(tokens), number % len(tokens)) for number in (outside < PASSES).nonzero().flatten().tolist()
    ]
    kept = []
    by_prefix: dict[int, list[int]] = {}
    for prefix, token in passing:
        by_prefix.setdefault(prefix, []).append(token)
    for prefix, places in by_prefix.items():
        some = tokens[torch.tensor(places, device=tokens.device)]
        fits = _outside(inputs, residuals[:MOST], sites[:MOST], [prefixes[prefix]], some) < MEMBER
        kept += [(*prefixes[prefix], token) for token in some[fits].tolist()]
    return kept


def _outside(
    inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], prefixes: list[Prefix], tokens: Tensor
) -> Tensor:
    """Return the geometric mean over sites of the fraction of each input outside the row space `[candidates]`."""
    total = torch.zeros(len(prefixes) * len(tokens), dtype=torch.float64, device=tokens.device)
    for residual, vectors in zip(residuals, inputs.extended(prefixes, tokens, sites), strict=True):
        vectors = residual.weighted(vectors.double())
        total += residual.scores(vectors, residual.new_part(vectors))
    return torch.exp(-total / (2 * len(residuals)))


class PrefixPool:
    """Candidates of a pursuit: extended prefixes, with their inputs at every site.

    Args:
        inputs: computes the inputs.
        residuals: the rows of each of `sites`; picks are projected out of them.
        sites: indices of the sites.
        tokens: the tokens that may extend a prefix.
    """

    def __init__(
        self, inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], tokens: Tensor
    ) -> None:
        self.inputs, self.residuals, self.sites, self.tokens = inputs, list(residuals), list(sites), tokens
        self.prefixes: list[Prefix] = []
        self.given: list[Prefix] = []
        self.picked: list[int] = []
        self._vectors: list[list[Tensor]] = [[] for _ in sites]
        self._new: list[list[Tensor]] = [[] for _ in sites]

    def start_from(self, prefixes: Sequence[Prefix]) -> None:
        """Project prefixes that were found by other means out of every site's rows."""
        self.given = list(prefixes)
        for residual, vectors in zip(self.residuals, self.inputs.of_prefixes(prefixes, self.sites), strict=True):
            for vector in residual.weighted(vectors):
                residual.pick(vector)

    @property
    def found(self) -> list[Prefix]:
        """All prefixes: those it was started from, and those picked."""
        return [*self.given, *(self.prefixes[number] for number in self.picked)]

    def extend(self, prefixes: Sequence[Prefix]) -> None:
        """Add every extension of these prefixes by one token."""
        self.prefixes += [(*prefix, token) for prefix in prefixes for token in self.tokens.tolist()]
        for number, vectors in enumerate(self.inputs.extended(prefixes, self.tokens, self.sites)):
            vectors = self.residuals[number].weighted(vectors)
            self._vectors[number].append(vectors)
            self._new[number].append(self.residuals[number].new_part(vectors))

    def vectors(self, number: int) -> Tensor:
        """Return all candidates' inputs at one site `[candidates, width]`."""
        self._vectors[number] = [torch.cat(self._vectors[number])]
        return self._vectors[number][0]

    def scores(self) -> Tensor:
        """Return each candidate's score, the sum over sites; −1 for those picked `[candidates]`."""
        total = torch.zeros(len(self.prefixes), device=self.tokens.device)
        for number, residual in enumerate(self.residuals):
            if residual.explained or residual.fraction < DONE:
                continue
            self._new[number] = [torch.cat(self._new[number])]
            total += residual.scores(self.vectors(number), self._new[number][0])
        total[self.picked] = -1
        return total

    def pick(self, candidate: int) -> None:
        """Project a candidate out of every site's rows."""
        self.picked.append(candidate)
        for number, residual in enumerate(self.residuals):
            vectors = self.vectors(number)
            direction = residual.pick(vectors[candidate])
            if direction is not None:
                old = torch.cat(self._new[number])
                self._new[number] = [(old - (vectors @ direction.to(vectors)).square()).clamp(min=0)]

    @property
    def explained(self) -> bool:
        """Whether nothing but noise is left at any site."""
        return all(residual.explained or residual.fraction < DONE for residual in self.residuals)


def grow_by_pursuit(
    pool: PrefixPool, most: int, deadline: Deadline, report: Callable[[list[Prefix]], None], *, noisy: bool = False
) -> None:
    """Pick prefixes until they explain all sites' rows, `most` are picked, or the time is up; the pool holds them.

    Args:
        pool: a pool with candidates.
        most: how many to pick at most.
        deadline: when to stop.
        report: called with the prefixes picked so far.
        noisy: whether to stop at prefixes that score far less than those before, as noise is never quite explained.
    """
    picked: list[float] = []
    while len(pool.picked) < most and not pool.explained and not deadline.passed:
        chosen: list[int] = []
        first = 0.0
        while len(chosen) < TOGETHER and not pool.explained:
            scores = pool.scores()
            best = int(scores.argmax())
            score = float(scores[best])
            faded = noisy and bool(picked) and score < FADED * sorted(picked)[len(picked) // 2]
            if score <= CLEARLY * first or faded:
                break
            first = first or score
            picked.append(score)
            pool.pick(best)
            chosen.append(best)
        if not chosen:
            break
        pool.extend([pool.prefixes[number] for number in chosen])
        report(pool.found)
