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

from gradleak.attacks.forest.first_layer import TokensAt
from gradleak.attacks.forest.prefix_inputs import REPEATS, Prefix, PrefixInputs, is_repeat
from gradleak.attacks.forest.residual import Dictionary, Residual, stacked
from gradleak.exchange import Deadline

MOST = 6
"""Sites that test a candidate of a membership growth, at most; the first of them alone rejects most."""

ENOUGH = 3
"""Prefixes are tested one by one if at least so many sites show their whole row space."""

MEMBER = 0.02
"""A prefix belongs to the batch if the geometric mean over sites of the fraction outside the row space is below this.
True ones reach 1e-6 to 1e-3, and near N = d wrong ones stay above 0.05."""

BEYOND, NOISY_MEMBER = 4.0, 0.08
"""In an update with visible noise, a prefix belongs to the batch if it has at most so many times as much outside as
noise moves there, and in no case more than this: wrong ones mostly stay above 0.13."""

ROOM, LEAST_MEMBER = 2.0, 1e-3
"""More prefixes than this many times a row space's dimensions are too many; the limit is then lowered, down to this."""

PASSES = 5.0
"""How many times as much may lie outside in the first, quick test by one site."""

TOGETHER = 4
"""Picks of a pursuit between two extensions, at most."""

CLEARLY = 0.7
"""A further pick before the next extension scores at least this fraction of the first."""

FADED = 0.1
"""In an update with visible noise, picking ends at scores below this fraction of the median pick's; true prefixes keep
half of it and more, what noise offers has a hundredth."""

DONE = 3e-5
"""A site is explained if less than this fraction of its rows is left."""


def whole_sites(
    candidates: Sequence[int], residual_of: Callable[[int], Residual], least: int = 0
) -> dict[int, Residual]:
    """Return the first deeper sites that show their whole row space.

    Args:
        candidates: indices of deeper sites, those that are to be preferred first.
        residual_of: makes the rows of a site.
        least: how many prefixes there are at least. An adapter's few rows may lack a direction because it is weak, not
            because they are more than the prefixes: with a lower rank than this they do not show them all.
    """
    whole: dict[int, Residual] = {}
    for examined, number in enumerate(candidates, start=1):
        residual = residual_of(number)
        if not residual.full and residual.rank >= least:
            whole[number] = residual
        if len(whole) == MOST or (examined == 2 * ENOUGH and not whole):
            break
    return dict(sorted(whole.items()))


def grow_under_noise(
    inputs: PrefixInputs,
    residuals: Sequence[Residual],
    sites: Sequence[int],
    tokens_at: TokensAt,
    deadline: Deadline,
    *,
    drift: bool,
) -> list[Prefix]:
    """Return prefixes whose inputs nearly lie in the row spaces of an update with visible noise.

    How near depends on the noise. Where weights moved between local steps, it is not known: the limit is the largest,
    and falls as long as more prefixes are found than the row spaces have room for.
    """
    moved = torch.tensor([residual.error for residual in residuals]).clamp(min=1e-12).log().mean().exp()
    member = NOISY_MEMBER if drift else min(max(BEYOND * float(moved), MEMBER), NOISY_MEMBER)
    most = int(ROOM * max(residual.rank for residual in residuals))
    found = grow_by_membership(inputs, residuals, sites, tokens_at, deadline, member, most)
    while len(found) > most and member > LEAST_MEMBER and not deadline.passed:
        member /= 2
        found = grow_by_membership(inputs, residuals, sites, tokens_at, deadline, member, most)
    return found[:most]


def grow_by_membership(
    inputs: PrefixInputs,
    residuals: Sequence[Residual],
    sites: Sequence[int],
    tokens_at: TokensAt,
    deadline: Deadline,
    member: float = MEMBER,
    most: int | None = None,
) -> list[Prefix]:
    """Return all prefixes whose inputs lie in the row spaces, shorter ones first.

    Args:
        inputs: computes the inputs.
        residuals: the rows of each of `sites`.
        sites: indices of sites that show their whole row space.
        tokens_at: the tokens that may stand at a position.
        deadline: when to return the prefixes found so far.
        member: the fraction of an input outside the row spaces up to which it lies in them.
        most: growth ends as soon as there are more prefixes than this; None for no limit.
    """
    found: list[Prefix] = []
    level: list[Prefix] = [()]
    while level and not deadline.passed and (most is None or len(found) <= most):
        tokens = tokens_at(len(level[0]))
        if not len(tokens) or len(level[0]) >= inputs.target.max_length:
            break
        grown: list[Prefix] = []
        for start in range(0, len(level), 8):
            if deadline.passed:
                break
            grown += _members(inputs, residuals, sites, _extended(level[start : start + 8], tokens), member)
        level = [prefix for prefix in grown if not (is_repeat(prefix) and len(prefix) > REPEATS)]
        found += level
    followed = {prefix[:length] for prefix in found if not is_repeat(prefix) for length in range(len(prefix))}
    return [prefix for prefix in found if not is_repeat(prefix) or prefix in followed]


def _extended(prefixes: Sequence[Prefix], tokens: Tensor) -> list[Prefix]:
    return [(*prefix, token) for prefix in prefixes for token in tokens.tolist()]


def _members(
    inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], prefixes: list[Prefix], member: float
) -> list[Prefix]:
    outside = _outside(inputs, residuals[:1], sites[:1], prefixes)
    passing = [prefixes[number] for number in (outside < PASSES * member).nonzero().flatten().tolist()]
    if not passing:
        return []
    outside = _outside(inputs, residuals[:MOST], sites[:MOST], passing)
    return [passing[number] for number in (outside < member).nonzero().flatten().tolist()]


def _outside(
    inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], prefixes: list[Prefix]
) -> Tensor:
    """Return the geometric mean over sites of the fraction of each input outside the row space `[prefixes]`."""
    total = torch.zeros(len(prefixes), dtype=torch.float64, device=inputs.target.device)
    for residual, vectors in zip(residuals, inputs.of_prefixes(prefixes, sites), strict=True):
        total += Dictionary(residual, residual.weighted(vectors.double())).scores()
    return torch.exp(-total / (2 * len(residuals)))


class PrefixPool:
    """Candidates of a pursuit: extended prefixes, with their inputs at every site.

    Args:
        inputs: computes the inputs.
        residuals: the rows of each of `sites`, of which nothing is explained.
        sites: indices of the sites.
        tokens: the tokens that may extend a prefix.
    """

    def __init__(
        self, inputs: PrefixInputs, residuals: Sequence[Residual], sites: Sequence[int], tokens: Tensor
    ) -> None:
        self.inputs, self.sites, self.tokens = inputs, list(sites), tokens
        self.prefixes: list[Prefix] = []
        self.given: list[Prefix] = []
        self.picked: list[int] = []
        widths = [residual.rows.shape[-1] for residual in residuals]
        self._groups = [[number for number, own in enumerate(widths) if own == width] for width in sorted(set(widths))]
        self._residuals = [stacked([residuals[number] for number in group]) for group in self._groups]
        self._offered: list[Dictionary] = []

    def _inputs(self, prefixes: Sequence[Prefix]) -> list[Tensor]:
        """Return the inputs of prefixes at the sites of each width `[sites, prefixes, width]`, weighted."""
        found = self.inputs.of_prefixes(prefixes, self.sites)
        return [
            residual.weighted(torch.stack([found[number] for number in group]))
            for group, residual in zip(self._groups, self._residuals, strict=True)
        ]

    def start_from(self, prefixes: Sequence[Prefix]) -> None:
        """Project prefixes that were found by other means out of every site's rows."""
        self.given = list(prefixes)
        for residual, vectors in zip(self._residuals, self._inputs(prefixes), strict=True):
            residual.pick_all(vectors)

    @property
    def found(self) -> list[Prefix]:
        """All prefixes: those it was started from, and those picked."""
        return [*self.given, *(self.prefixes[number] for number in self.picked)]

    def extend(self, prefixes: Sequence[Prefix]) -> None:
        """Add every extension of these prefixes by one token."""
        grown = _extended(prefixes, self.tokens)
        self.prefixes += grown
        if not self._offered:
            pairs = zip(self._residuals, self._inputs(grown), strict=True)
            self._offered = [Dictionary(residual, vectors) for residual, vectors in pairs]
            return
        for offered, vectors in zip(self._offered, self._inputs(grown), strict=True):
            offered.add(vectors)

    def scores(self) -> Tensor:
        """Return each candidate's score, the sum over sites; −1 for those picked `[candidates]`."""
        total = torch.zeros(len(self.prefixes), device=self.tokens.device)
        for offered in self._offered:
            is_open = offered.residual.fractions >= DONE
            total += (offered.scores() * is_open[:, None]).sum(dim=0)
        total[self.picked] = -1
        return total

    def pick(self, candidate: int) -> None:
        """Project a candidate out of every site's rows."""
        self.picked.append(candidate)
        for offered in self._offered:
            offered.pick(candidate)

    @property
    def left(self) -> float:
        """The fraction of the rows that is left, a mean over sites."""
        return float(torch.cat([residual.fractions for residual in self._residuals]).mean())

    @property
    def explained(self) -> bool:
        """Whether nothing but noise is left at any site."""
        return not any(bool((residual.fractions >= DONE).any()) for residual in self._residuals)


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
