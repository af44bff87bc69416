"""What a compressed update says of the gradient that it was made from.

Pruning and sign compression add no noise: they leave things out. All gradients that would have been sent as this update
form a convex set (the entries that were kept are known, the others are smaller than the smallest of them; or all signs
are known), and the gradient lies in it. It also lies among the matrices of low rank, or among those that known rows
span. Projecting onto the one and the other in turn comes close to where they meet, and if they do not meet, to what
separates them: that tells the rank, and with it the number of sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.spikes import spikes
from gradleak.exchange import Deadline
from gradleak.targets import Target

MARGIN = 0.3
"""A sign stands for an entry of at least this size, the mean being 1: the smallest matrix of these signs is zero."""

KEPT = 0.95
"""An update of which more entries than this are not zero was not pruned."""

NEGLIGIBLE = 0.02
"""Where the smallest entry sent is below this, the mean being 1, zeros are rounding: FedAvg sends differences."""

FAINT = 0.02
"""What a sentence's singular value is at least, as a share of the largest: local steps leave smaller ones."""

STEPS = 60
"""How often a guess is projected."""

SIGNS_MET, VALUES_MET = 0.034, 0.004
"""Shares of a guess that lie outside what the update allows: below them, a matrix of that rank was sent."""

MOST = 16
"""More sentences than this are not counted."""

ROWS = 384
"""Rows of a gradient that the sentences are counted by: a few times as many as there are sentences would do."""


class Sent:
    """Gradients as they were sent, each scaled to entries of mean size 1, and the set of what they may have been.

    Args:
        gradients: of maps that were fed the same vectors `[outputs, width]`.
    """

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        scaled = [_of_mean_size_one(gradient) for gradient in gradients]
        sizes = [part[part != 0].abs() for part in scaled]
        least = [
            part.new_full((len(part), 1), float(kept.min()) if len(kept) else 1.0)
            for part, kept in zip(scaled, sizes, strict=True)
        ]
        self.lengths = [len(part) for part in scaled]
        self.values = torch.cat(scaled)
        self.signs_only = all(bool((kept == kept[0]).all()) for kept in sizes if len(kept))
        self._least = torch.cat(least)
        kept = bool((self.values != 0).float().mean() > KEPT) or bool((self._least < NEGLIGIBLE).all())
        self.complete = not self.signs_only and kept

    def nearest(self, guess: Tensor) -> Tensor:
        """Return the nearest of the gradients that would have been sent as these."""
        if self.complete:
            return self.values
        if self.signs_only:
            return torch.where(self.values != 0, self.values * (guess * self.values).clamp(min=MARGIN), guess)
        return torch.where(self.values != 0, self.values, guess.clamp(-self._least, self._least))

    def apart(self, guess: Tensor) -> float:
        """Return which share of a guess lies outside the set."""
        return float((self.nearest(guess) - guess).norm() / guess.norm().clamp(min=1e-12))

    def split(self, values: Tensor) -> list[Tensor]:
        """Return a matrix map by map, in float64."""
        return [part.double() for part in torch.split(values, self.lengths)]


def _of_mean_size_one(gradient: Tensor) -> Tensor:
    kept = gradient[gradient != 0].float().abs()
    return gradient.float() / kept.mean() if len(kept) else gradient.float()


def completed(sent: Sent, rank: int, steps: int = STEPS, deadline: Deadline | None = None) -> Tensor:
    """Return a matrix of a rank that would have been sent so, as nearly as a few steps find one.

    The best matrix of that rank is found step by step, too: each multiplies its row space with the gradient once.
    """
    generator = torch.Generator().manual_seed(0)
    space = torch.randn(sent.values.shape[1], rank, generator=generator).to(sent.values)
    for _ in range(4):
        space = _turned(sent.values, space)

    def project(values: Tensor) -> Tensor:
        nonlocal space
        space = _turned(values, space)
        return (values @ space) @ space.T

    return _meeting(sent, project, steps, deadline)


def spanned(sent: Sent, rows: Tensor, steps: int = STEPS) -> Tensor:
    """Return a matrix whose rows lie in the span of others and that would have been sent so, as nearly as possible."""
    space = torch.linalg.qr(rows.T)[0].to(sent.values)
    return _meeting(sent, lambda values: (values @ space) @ space.T, steps)


def _turned(values: Tensor, space: Tensor) -> Tensor:
    """One step of orthogonal iteration towards the strongest directions."""
    return torch.linalg.qr(values.T @ (values @ space))[0]


def _meeting(sent: Sent, project: Callable[[Tensor], Tensor], steps: int, deadline: Deadline | None = None) -> Tensor:
    """Alternate projections, each a little further than it would go (Nesterov 1983)."""
    guess = before = project(sent.values)
    for number in range(steps):
        if deadline is not None and deadline.passed:
            break
        further = guess + number / (number + 3) * (guess - before)
        before, guess = guess, project(sent.nearest(further))
    return guess


def count_sentences(target: Target, gradient: Mapping[str, Tensor], deadline: Deadline | None = None) -> int | None:
    """Return how many sentences a changed update is of; None if it does not tell.

    A classifier looks at one token of each sentence, so that the maps after the last layer's attention are fed one
    vector a sentence: their gradient has that rank.
    """
    last = target.layers[-1].feed_forward_in
    if target.task != "classification" or last.weight not in gradient:
        return None
    matrix = last.weight_in(gradient)
    if not matrix.any():
        return None
    sent = Sent([matrix])
    if sent.complete:
        found = spikes([matrix], FAINT)
        return None if found is None else len(found.factor)
    some = torch.randperm(len(matrix), generator=torch.Generator().manual_seed(0))[:ROWS].to(matrix.device)
    sent = Sent([matrix[some]])
    met = SIGNS_MET if sent.signs_only else VALUES_MET
    ranks = range(1, min(MOST, *sent.values.shape) + 1)
    for rank in ranks:
        if deadline is not None and deadline.passed:
            break
        if sent.apart(completed(sent, rank)) < met:
            return rank
    return None
