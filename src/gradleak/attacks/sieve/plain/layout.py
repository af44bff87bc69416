"""Lay out a batch: which words occur once, where, and together with which others.

Most words of a batch occur once. Their positions follow from the coefficients (`coefficients.py`): each is a summand of
its position's, and once it is taken out, the next is easier to see. In the value map the coefficients of a sentence's
words resemble each other, so the words fall into groups, one for each sentence. What is left, the frequent words and
their positions, is a non-negative combination of the groups' directions: it says which groups have a word, and which
have one at a position. Words and positions of a group are then matched with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment, nnls
from torch import Tensor
from torch.nn.functional import normalize

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.plain.coefficients import Coefficients
from gradleak.attacks.sieve.token_pairs import TokenPairs

ONCE = 0.8
"""A word occurs once, and where it has at least this share of its coefficient; mostly 0.98."""

PEELINGS = 6
"""How often words that occur once are taken out of the positions' coefficients."""

ALIKE = 0.18
"""Mean cosine of value coefficients above which groups of words are one sentence: 0.3 to 0.5 within, 0 across."""

OWN = 0.7
"""A word belongs to one group alone if it has at least this share of its direction."""

FEW = 3
"""Groups of fewer words are mostly splinters of others: sentences are sought in them when no other group is left."""

TWICE = 0.5
"""The weight of a word's second occurrence in a sentence, compared with its first."""

LEAST_MEMBER, LEAST_SHARE = 1e-3, 1e-2
"""Added to estimates of zero, so that a word that is certain by one of two estimates is not excluded by the other."""

HELD = 100.0
"""The score of a word at the one place where it occurs; all others are below 2."""

OCCUPIED, MOST_OCCUPIED = 0.3, 1.0
"""A position belongs to a group if it has at least the first share of a word there; more than the second counts no
more."""

MOST_ENDS = 8
"""How many positions are kept at which a sentence may end."""


@dataclass(frozen=True)
class Layout:
    """A sentence as far as its words and positions are seen.

    Attributes:
        rows: sentences to begin with, as indices of pairs, one for each possible length, the most probable first.
        held: positions whose words are certain.
    """

    rows: list[Tensor]
    held: frozenset[int]


@dataclass(frozen=True)
class _Groups:
    """Words that occur once, by sentence.

    Attributes:
        held: for each group, the token that stands at a position, as an index of the distinct tokens.
        members: how much each group has of each token `[tokens, groups]`.
        shares: who stands where, of the words that occur more than once `[tokens, positions]`.
        occupied: how much each group has of each position, in units of its words `[positions, groups]`.
    """

    held: list[dict[int, int]]
    members: Tensor
    shares: Tensor
    occupied: Tensor


def lay_out(observed: ObservedUpdate, pairs: TokenPairs, gradients: Mapping[str, Tensor]) -> list[Layout]:
    """Return what is seen of each sentence, the shortest first.

    Args:
        observed: the update.
        pairs: the pairs in the row space.
        gradients: what is left of the first maps' gradients.
    """
    special = torch.tensor([*sum(observed.target.special_tokens, ())])
    coefficients = Coefficients.of(observed, pairs, gradients)
    groups = _group(coefficients, torch.isin(coefficients.tokens, special))
    placed = _Placement(observed, coefficients)
    layouts = [placed.layout(groups, number) for number in range(len(groups.held))]
    return sorted((layout for layout in layouts if layout.rows), key=lambda layout: len(layout.rows[0]))


def _group(coefficients: Coefficients, special: Tensor) -> _Groups:
    """Find the words that occur once, and group them by sentence."""
    left, free = coefficients.places.clone(), torch.ones(len(coefficients.tokens), dtype=torch.bool)
    once: dict[int, int] = {}
    for _ in range(PEELINGS):
        shares = coefficients.shares(left, free)
        largest, position = shares.max(dim=1)
        found = (free & ~special & (largest > ONCE)).nonzero().flatten()
        if not len(found):
            break
        free[found] = False
        for token in found.tolist():
            once[token] = int(position[token])
            left[:, once[token]] -= coefficients.words[:, token]
    values = normalize(coefficients.word_values, dim=0)
    parts = _clusters(values, once)
    large = [part for part in parts if len(part) >= FEW] or parts
    if not large:
        return _Groups([], values[:0], shares, values[:0])
    directions = normalize(torch.stack([values[:, part].sum(dim=1) for part in large], dim=1), dim=0)
    members = _combinations(directions, values)
    held = [{once[token]: token for token in part if _is_own(members[token], n)} for n, part in enumerate(large)]
    along = [coefficients.word_values[:, part].T @ directions[:, n] for n, part in enumerate(large)]
    sizes = torch.stack([each.median() for each in along])
    occupied = _combinations(directions, coefficients.place_values) / sizes
    return _Groups(held, members, shares, occupied)


def _clusters(values: Tensor, once: Mapping[int, int]) -> list[list[int]]:
    """Return groups of the words that occur once whose values resemble each other, the largest first."""
    tokens = sorted(once)
    if len(tokens) < 2:
        return [tokens] if tokens else []
    cosines = (values[:, tokens].T @ values[:, tokens]).clamp(-1.0, 1.0)
    positions = torch.tensor([once[token] for token in tokens])
    cosines[positions[:, None] == positions] = -1.0  # no sentence has two words at one position
    first, second = torch.triu_indices(len(tokens), len(tokens), 1)
    labels = fcluster(linkage((1 - cosines[first, second]).numpy(), "average"), 1 - ALIKE, "distance")
    groups: dict[int, list[int]] = {}
    for token, label in zip(tokens, labels.tolist(), strict=True):
        groups.setdefault(label, []).append(token)
    return sorted(groups.values(), key=len, reverse=True)


def _combinations(directions: Tensor, vectors: Tensor) -> Tensor:
    """Return the non-negative coefficients of vectors on directions `[vectors, directions]`."""
    each = [nnls(directions.numpy(), vector.numpy())[0] for vector in vectors.T]
    return torch.stack([torch.from_numpy(one) for one in each])


def _is_own(members: Tensor, group: int) -> bool:
    """Return whether a word belongs to one group alone; two sentences may have it at the same position."""
    return bool(members[group] >= OWN * members.sum())


class _Placement:
    """Matches words and positions of a group.

    Args:
        observed: the update.
        coefficients: of its words and positions.
    """

    def __init__(self, observed: ObservedUpdate, coefficients: Coefficients) -> None:
        pairs = coefficients.pairs
        self._coefficients, self._device = coefficients, pairs.tokens.device
        self._before, self._after = observed.target.special_tokens
        positions = pairs.positions.cpu()
        self._table = torch.full((len(coefficients.tokens), int(positions.max()) + 1), -1)
        self._table[coefficients.token_of, positions] = torch.arange(len(positions))
        self._number = {token: n for n, token in enumerate(coefficients.tokens.tolist())}
        special = torch.tensor([self._number.get(token, 0) for token in (*self._before, *self._after)])
        self._allowed = self._table >= 0
        self._allowed[special] = False

    def layout(self, groups: _Groups, group: int) -> Layout:
        """Return the sentence of a group, for every position at which it can end."""
        held = groups.held[group]
        scores = (groups.members[:, group, None] + LEAST_MEMBER) * (groups.shares + LEAST_SHARE)
        scores = torch.where(self._allowed, scores, 0.0)
        for position, token in held.items():
            scores[token] = 0.0
            scores[token, position] = HELD
        gains = (groups.occupied[:, group].clamp(max=MOST_OCCUPIED) - OCCUPIED).cumsum(dim=0)
        ends = sorted(self._ends(), key=lambda end: -float(gains[end]))[:MOST_ENDS]
        rows = [self._row(scores[:, : end + 1], end) for end in ends]
        return Layout([row for row in rows if row is not None], frozenset(held))

    def _ends(self) -> list[int]:
        """Return the positions at which a sentence can end: none if a token that begins or ends all is no candidate."""
        if any(token not in self._number for token in (*self._before, *self._after)):
            return []
        positions = range(len(self._before) + len(self._after), self._table.shape[1])
        if not self._after:
            return list(positions)
        end = self._number[self._after[-1]]
        return [p for p in positions if self._table[end, p] >= 0]

    def _row(self, scores: Tensor, end: int) -> Tensor | None:
        """Return a sentence that ends at a position; None if a position has no word."""
        inner = range(len(self._before), end + 1 - len(self._after))
        own = scores[:, inner.start : inner.stop]
        if not len(inner) or (own.amax(dim=0) == 0).any():
            return None
        matched = linear_sum_assignment(-torch.cat([own, TWICE * own]).numpy())
        words, places = (torch.from_numpy(each) for each in matched)
        tokens = own.argmax(dim=0)  # a word may occur more than twice, or not there where it is left for
        fits = own[words % len(own), places] > 0
        tokens[places[fits]] = words[fits] % len(own)
        special = [self._number[token] for token in (*self._before, *self._after)]
        begin, ends = special[: len(self._before)], special[len(self._before) :]
        tokens = torch.cat([torch.tensor(begin, dtype=torch.long), tokens, torch.tensor(ends, dtype=torch.long)])
        return self._table[tokens, torch.arange(end + 1)].to(self._device)
