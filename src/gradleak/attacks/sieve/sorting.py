"""Which words a changed update of several sentences is of, and which of them belong together.

The words are those whose x(t, p) the spikes of the first maps explain, one after the other. With their vectors known,
the gradients that each word's query, key and value had follow. Attention is broad: all words of a sentence pass their
values to the same tokens, so that the gradients of their values look alike, and of their keys, too. Words of different
sentences have nothing in common. A few directions tell them apart.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor

from gradleak.attacks.sieve.completion import Sent, spanned
from gradleak.attacks.sieve.inputs import Inputs
from gradleak.targets import Target

SHORTLIST = 64
"""How many tokens of each position are looked at."""

BY_CHANCE = 0.1
"""What a wrong token explains of itself by chance, over and above the share of all directions that spikes take."""

DOUBTFUL = 16
"""How many tokens that explain less are kept as second choice."""

RIDGE = 0.1
SEEDS = 20


@dataclass(frozen=True)
class Found:
    """Tokens at positions, the surest first.

    Attributes:
        tokens: `[found]`.
        positions: where each explains most; often off by one or two.
        sure: how many of them hardly stand there by chance.
    """

    tokens: Tensor
    positions: Tensor
    sure: int

    def best(self) -> Found:
        """Return the sure ones alone."""
        return Found(self.tokens[: self.sure], self.positions[: self.sure], self.sure)


def pursue_words(inputs: Inputs, basis: Tensor, words: Tensor, common: Tensor, longest: int) -> Found:
    """Return the tokens that were fed, by orthogonal matching pursuit over all positions at once.

    Args:
        inputs: the tables of x(t, p).
        basis: directions that stand out, orthonormal columns `[width, rank]`.
        words: ids to choose from.
        common: rows that all texts share, which tell nothing `[rows, width]`.
        longest: the most tokens of a sentence.
    """
    shared = torch.linalg.qr(common.T)[0]
    left = basis - shared @ (shared.T @ basis)
    places = torch.arange(longest, device=words.device)
    own = (1.0 - inputs.captured(shared, words, places)).clamp(min=1e-3)
    best = (inputs.captured(left, words, places) / own).topk(min(SHORTLIST, len(words)), dim=0).indices
    tokens, positions = words[best].T.flatten(), places.repeat_interleave(len(best))
    rows = inputs(tokens, positions)
    rows = rows / rows.norm(dim=1, keepdim=True)
    rows = rows - (rows @ shared) @ shared.T
    level = basis.shape[1] / inputs.width + BY_CHANCE
    chosen: list[int] = []
    sure = 0
    while len(chosen) < min(sure + DOUBTFUL, len(rows)):
        gain = (rows @ left).square().sum(dim=1) / rows.square().sum(dim=1).clamp(min=1e-3)
        number = int(gain.argmax())
        sure += int(sure == len(chosen) and float(gain[number]) > level)
        chosen.append(number)
        direction = rows[number] / rows[number].norm().clamp(min=1e-12)
        rows = rows - (rows @ direction)[:, None] * direction
        left = left - direction[:, None] * (direction @ left)
    return Found(tokens[chosen], positions[chosen], sure)


def affinities(target: Target, inputs: Inputs, sent: Sent, found: Found) -> list[Tensor]:
    """Return how alike the gradients of the tokens' values and keys are, head by head, each `[tokens, tokens]`.

    Several ways to look at it, the best on average first: by values and keys or by values alone, and with large entries
    counting as they are or by their root. Which of them sorts a batch best differs.
    """
    device = found.tokens.device
    first = torch.tensor(target.special_tokens[0][:1], device=device, dtype=torch.long)
    rows = torch.cat([inputs(found.tokens, found.positions), inputs(first, torch.zeros_like(first))])
    rows = rows / rows.norm(dim=1, keepdim=True)
    gram = rows @ rows.T + RIDGE * torch.eye(len(rows), dtype=rows.dtype, device=device)
    heads = int(target.config.num_attention_heads)
    whole = spanned(sent, rows)
    ways = []
    for matrix in (whole, whole.sign() * whole.abs().sqrt()):
        _, *parts = sent.split(matrix)  # of queries, keys, values
        keys, values = (_alike(torch.linalg.solve(gram, rows @ part.T)[: len(found.tokens)], heads) for part in parts)
        # a key's gradient has no sign of its own: those of a sentence sum to zero
        ways += [(values.mean(dim=0) + keys.abs().mean(dim=0)) / 2, values.mean(dim=0)]
    return ways


def _alike(gradients: Tensor, heads: int) -> Tensor:
    """Return the cosines of gradients `[tokens, width]` head by head `[heads, tokens, tokens]`."""
    by_head = gradients.view(len(gradients), heads, -1).transpose(0, 1)
    by_head = by_head / by_head.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return by_head @ by_head.mT


def grouped(alike: Tensor, count: int) -> list[list[int]]:
    """Return which tokens belong together: k-means on the strongest directions of a matrix of affinities."""
    if count >= len(alike):
        return [[number] if number < len(alike) else [] for number in range(count)]
    values, vectors = np.linalg.eigh(alike.cpu().numpy())
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
