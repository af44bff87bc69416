"""Find the words of a defended batch and group them into sentences.

The words are those whose x(t, p) capture the signal of the first maps, by matching pursuit. With their vectors known,
the gradients of each word's query, key and value follow. Attention is broad: all words of a sentence pass their values
to the same tokens, so the gradients of their values are alike, and of their keys, too. Words of different sentences
have nothing in common. A few directions separate them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from gradleak.attacks.sieve.defended.feasible_set import FeasibleSet, complete_by_rows
from gradleak.attacks.sieve.observed import ObservedUpdate

SHORTLIST = 64
"""How many tokens of each position are considered."""

BY_CHANCE = 0.1
"""What a wrong token captures by chance, over and above the fraction of all directions that are signal."""

DOUBTFUL = 16
"""How many tokens that capture less are kept as second choice."""

RIDGE = 0.1
"""Regularisation of the least squares that gives each word's output gradients."""

SEEDS = 20
"""How many starts of k-means are compared."""


@dataclass(frozen=True)
class FoundWords:
    """Tokens at positions, the most certain first.

    Attributes:
        tokens: token ids `[found]`.
        positions: where each captures most; often off by one or two.
        certain: how many of them capture more than by chance.
    """

    tokens: Tensor
    positions: Tensor
    certain: int

    def best(self) -> FoundWords:
        """Return the certain ones alone."""
        return FoundWords(self.tokens[: self.certain], self.positions[: self.certain], self.certain)


def pursue_words(observed: ObservedUpdate, basis: Tensor, words: Tensor) -> FoundWords:
    """Return the tokens of a batch, by orthogonal matching pursuit over all positions at once.

    Args:
        observed: the update.
        basis: the signal, orthonormal columns `[width, rank]`.
        words: ids to choose from.
    """
    inputs = observed.inputs
    shared = torch.linalg.qr(observed.common.T)[0]  # shared by all texts, hence not informative
    left = basis - shared @ (shared.T @ basis)
    places = torch.arange(observed.longest, device=words.device)
    own = (1.0 - inputs.captured_energy(shared, words, places)).clamp(min=1e-3)
    best = (inputs.captured_energy(left, words, places) / own).topk(min(SHORTLIST, len(words)), dim=0).indices
    tokens, positions = words[best].T.flatten(), places.repeat_interleave(len(best))
    rows = inputs(tokens, positions)
    rows = rows / rows.norm(dim=1, keepdim=True)
    rows = rows - (rows @ shared) @ shared.T
    level = basis.shape[1] / inputs.width + BY_CHANCE
    chosen: list[int] = []
    certain = 0
    while len(chosen) < min(certain + DOUBTFUL, len(rows)):
        gain = (rows @ left).square().sum(dim=1) / rows.square().sum(dim=1).clamp(min=1e-3)
        number = int(gain.argmax())
        certain += int(certain == len(chosen) and float(gain[number]) > level)
        chosen.append(number)
        direction = rows[number] / rows[number].norm().clamp(min=1e-12)
        rows = rows - (rows @ direction)[:, None] * direction
        left = left - direction[:, None] * (direction @ left)
    return FoundWords(tokens[chosen], positions[chosen], certain)


def affinities(observed: ObservedUpdate, sent: FeasibleSet, found: FoundWords) -> list[Tensor]:
    """Return cosines of the tokens' value and key gradients, averaged over heads, each `[tokens, tokens]`.

    Four variants, the best on average first: by values and keys or by values alone, and with entries as they are or by
    their square root. Which of them groups a batch best differs.
    """
    inputs, target, device = observed.inputs, observed.target, found.tokens.device
    first = torch.tensor(target.special_tokens[0][:1], device=device, dtype=torch.long)
    rows = torch.cat([inputs(found.tokens, found.positions), inputs(first, torch.zeros_like(first))])
    rows = rows / rows.norm(dim=1, keepdim=True)
    gram = rows @ rows.T + RIDGE * torch.eye(len(rows), dtype=rows.dtype, device=device)
    heads = int(target.config.num_attention_heads)
    whole = complete_by_rows(sent, rows)
    variants = []
    for matrix in (whole, whole.sign() * whole.abs().sqrt()):
        _, *parts = sent.split(matrix)  # of queries, keys, values
        keys, values = (_cosines(torch.linalg.solve(gram, rows @ part.T)[: len(found.tokens)], heads) for part in parts)
        # the key gradients of a sentence sum to zero, so their signs differ
        variants += [(values.mean(dim=0) + keys.abs().mean(dim=0)) / 2, values.mean(dim=0)]
    return variants


def _cosines(gradients: Tensor, heads: int) -> Tensor:
    """Return the cosines of gradients `[tokens, width]` head by head `[heads, tokens, tokens]`."""
    by_head = gradients.view(len(gradients), heads, -1).transpose(0, 1)
    by_head = by_head / by_head.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return by_head @ by_head.mT


def group_words(affinity: Tensor, count: int) -> list[list[int]]:
    """Return groups of tokens: spectral clustering (k-means on the dominant eigenvectors) of an affinity matrix."""
    if count >= len(affinity):
        return [[number] if number < len(affinity) else [] for number in range(count)]
    values, vectors = np.linalg.eigh(affinity.cpu().numpy())
    points = vectors[:, -count:] * np.sqrt(np.maximum(values[-count:], 0))
    points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    best, least = np.zeros(len(points), dtype=int), np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty group: another seed does better
        for seed in range(SEEDS):
            centres, labels = kmeans2(points, count, minit="++", seed=seed)
            spread = float(np.square(points - centres[labels]).sum()) + (count - len(set(labels))) * len(points)
            if spread < least:
                best, least = labels, spread
    return [np.flatnonzero(best == group).tolist() for group in range(count)]
