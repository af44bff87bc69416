"""Skeletons of sentences: first guesses from closed-form estimates of positions and of tokens that belong together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.plain.coefficients import Coefficients
from gradleak.attacks.sieve.token_pairs import TokenPairs

CERTAIN_POSITION = 0.5
"""A token's position is certain if at least this coefficient of b_p on a_t is found for it."""

ALIKE = 0.3
"""Cosine of value gradients above which a token counts as one of the sentence in a refinement of its skeleton."""

REFINEMENTS = 3
"""How often a skeleton is recomputed from the tokens that were found to belong to it."""


def find_skeletons(observed: ObservedUpdate, pairs: TokenPairs, gradients: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Return sentences to start from `[sentences, length]`, as indices of pairs, by length.

    Each starts from a token with a certain position and takes at every position the most probable pair that is most
    alike, first to that token, then to all tokens found to be alike.

    Args:
        observed: the update.
        pairs: the pairs in the row space.
        gradients: what is left of the first maps' gradients.
    """
    places, alike = _estimates(observed, pairs, gradients)
    before, after = observed.target.special_tokens
    special = torch.tensor([*before, *after], device=pairs.tokens.device)
    inner = (pairs.positions >= len(before)) & ~torch.isin(pairs.tokens, special)
    certain = inner & (places > CERTAIN_POSITION)
    seeds = (certain if certain.any() else inner).nonzero().flatten()
    likeness = alike[seeds]
    for _ in range(REFINEMENTS):
        chosen = _best_pairs(pairs, places * likeness.clamp(min=0) + 1e-3 * likeness, inner)
        chosen = torch.where(
            pairs.positions[seeds][:, None] == torch.arange(chosen.shape[1]).to(seeds), seeds[:, None], chosen
        )
        members = certain[chosen] & (likeness.gather(1, chosen) > ALIKE) | (chosen == seeds[:, None])
        weights = torch.zeros_like(likeness).scatter_add_(1, chosen, members.to(likeness))
        likeness = weights @ alike
        likeness = likeness / (likeness * weights).sum(dim=1, keepdim=True).clamp(min=1e-12).sqrt()
    return _cut(pairs, distinct_rows(chosen), len(before), after)


def _estimates(observed: ObservedUpdate, pairs: TokenPairs, gradients: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the coefficients of b_p on a_t `[pairs]`, and the cosines of tokens' value gradients `[pairs, pairs]`."""
    coefficients = Coefficients.of(observed, pairs, gradients)
    token_of, positions = coefficients.token_of, pairs.positions.cpu()
    places = coefficients.shares(coefficients.places)[token_of, positions]
    values = normalize(coefficients.word_values, dim=0)
    cosines = values.T @ values
    return places.to(pairs.tokens.device), cosines[token_of][:, token_of].to(pairs.tokens.device)


def _best_pairs(pairs: TokenPairs, scores: Tensor, inner: Tensor) -> Tensor:
    """Return the pair with the largest score at each position `[seeds, positions]`; special tokens come last."""
    scores = scores - 1e3 * ~inner
    picked = []
    for position in range(int(pairs.positions.max()) + 1):
        there = pairs.at(position)
        picked.append(there[scores[:, there].argmax(dim=1)])
    return torch.stack(picked, dim=1)


def _cut(pairs: TokenPairs, whole: Tensor, first: int, after: tuple[int, ...]) -> dict[int, Tensor]:
    """Return skeletons cut at every position where a sentence can end, by length."""
    skeletons = {}
    for end in _ends(pairs, whole.shape[1] - 1, first + 1, after):
        rows = whole[:, : end + 1].clone()
        if after:
            there = pairs.at(end)
            rows[:, end] = there[pairs.tokens[there] == after[-1]]
        skeletons[end + 1] = distinct_rows(rows)
    return skeletons


def _ends(pairs: TokenPairs, last: int, first: int, after: tuple[int, ...]) -> list[int]:
    """Return the positions at which a sentence can end."""
    if not after:
        return list(range(first - 1, last + 1))
    ends = pairs.positions[pairs.tokens == after[-1]].tolist()
    return sorted(end for end in ends if first <= end <= last)


def distinct_rows(rows: Tensor) -> Tensor:
    """Return each row of a matrix once, in order of first appearance."""
    each = list(dict.fromkeys(map(tuple, rows.tolist())))
    return torch.tensor(each, device=rows.device, dtype=rows.dtype).view(-1, rows.shape[1])
