"""The gradients that a compressed update may have been made from.

Pruning and sign compression add no noise: they remove information. All gradients that would have been sent as this
update form a convex set (the kept entries are known, the others are smaller than the smallest of them; or all signs
are known), and the true gradient lies in it. It also has low rank, or its rows lie in a known span. Alternating
projections between the two sets approach their intersection; if they do not intersect, the gap remains. This
determines the rank, and with it the number of sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.exchange import Deadline, FedAvg, Protocol
from gradleak.leakage.first_step import are_steps
from gradleak.leakage.noise_floor import whiten
from gradleak.leakage.perturbation import MAPS_PRUNED, looks_rounded
from gradleak.leakage.restoration import restored_values
from gradleak.targets import Target

MARGIN = 0.3
"""A sign stands for an entry of at least this size, relative to the mean: otherwise the zero matrix would be
feasible."""

NEGLIGIBLE = 0.02
"""If the smallest entry sent is below this, relative to the mean, zeros are rounding: FedAvg sends differences."""

STEPS = 60
"""Number of alternating projections."""

SIGNS_MET, VALUES_MET = 0.034, 0.004
"""Fractions of a matrix outside the feasible set below which a matrix of its rank was sent: of signs, and of values."""

MOST = 16
"""More sentences than this are not counted."""

ROWS = 384
"""Rows of a gradient used to count sentences: a few times as many as there are sentences would do."""


ALONE = 0.96
"""The fraction of several steps' energy in one direction if they were all taken on one sentence; 0.91 for four."""


class FeasibleSet:
    """Gradients as sent, each scaled to a mean absolute entry of 1, and the set of gradients they may have been.

    Args:
        gradients: of maps with the same inputs, each `[outputs, width]`.
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
        unpruned = bool((self.values != 0).float().mean() > 1 - MAPS_PRUNED)
        kept = unpruned or bool((self._least < NEGLIGIBLE).all())
        self.complete = not self.signs_only and kept

    def project(self, matrix: Tensor) -> Tensor:
        """Return the nearest matrix of the set."""
        if self.complete:
            return self.values
        if self.signs_only:
            return torch.where(self.values != 0, self.values * (matrix * self.values).clamp(min=MARGIN), matrix)
        return torch.where(self.values != 0, self.values, matrix.clamp(-self._least, self._least))

    def distance(self, matrix: Tensor) -> float:
        """Return the fraction of a matrix that lies outside the set."""
        return float((self.project(matrix) - matrix).norm() / matrix.norm().clamp(min=1e-12))

    def split(self, values: Tensor) -> list[Tensor]:
        """Return a matrix map by map, in float64."""
        return [part.double() for part in torch.split(values, self.lengths)]


def _of_mean_size_one(gradient: Tensor) -> Tensor:
    kept = gradient[gradient != 0].float().abs()
    return gradient.float() / kept.mean() if len(kept) else gradient.float()


def complete_by_rank(sent: FeasibleSet, rank: int, steps: int = STEPS, deadline: Deadline | None = None) -> Tensor:
    """Return a matrix of a given rank that is as nearly feasible as a few steps achieve.

    The dominant row space is tracked by orthogonal iteration: each step multiplies it with the matrix once.
    """
    generator = torch.Generator().manual_seed(0)
    space = torch.randn(sent.values.shape[1], rank, generator=generator).to(sent.values)
    for _ in range(4):
        space = _orthogonal_iteration(sent.values, space)

    def project(values: Tensor) -> Tensor:
        nonlocal space
        space = _orthogonal_iteration(values, space)
        return (values @ space) @ space.T

    return _alternate(sent, project, steps, deadline)


def complete_by_rows(sent: FeasibleSet, rows: Tensor, steps: int = STEPS) -> Tensor:
    """Return a matrix whose rows lie in a known span and that is as nearly feasible as a few steps achieve."""
    space = torch.linalg.qr(rows.T)[0].to(sent.values)
    return _alternate(sent, lambda values: (values @ space) @ space.T, steps)


def _orthogonal_iteration(values: Tensor, space: Tensor) -> Tensor:
    return torch.linalg.qr(values.T @ (values @ space))[0]


def _alternate(
    sent: FeasibleSet, project: Callable[[Tensor], Tensor], steps: int, deadline: Deadline | None = None
) -> Tensor:
    """Alternate projections with momentum (Nesterov 1983)."""
    guess = before = project(sent.values)
    for number in range(steps):
        if deadline is not None and deadline.passed:
            break
        further = guess + number / (number + 3) * (guess - before)
        before, guess = guess, project(sent.project(further))
    return guess


def count_sentences(
    target: Target, gradient: Mapping[str, Tensor], protocol: Protocol | None = None, deadline: Deadline | None = None
) -> int | None:
    """Return the number of sentences of a defended update; None if it is not determined.

    A classifier uses one token of each sentence, so the maps after the last layer's attention have one input vector per
    sentence: their gradient has that rank.
    """
    layer = target.layers[-1]
    parts = [part for part in (layer.attention_output, layer.feed_forward_in) if part.weight in gradient]
    if target.task != "classification" or not parts:
        return None
    matrix = parts[0].weight_in(gradient)  # rounding shows least in the first of them
    if not matrix.any():
        return None
    training = protocol.training if protocol is not None else None
    if training is not None and training.optimizer != "sgd" and training.steps != 1:
        return _count_behind_steps(matrix, training, protocol.clients if protocol else 1, deadline)
    if training is not None and are_steps(gradient):  # rounding hides what is not the sign
        return _count_by_rank(parts[-1].weight_in(gradient).sign(), deadline)
    if protocol is not None and training is not None and training.optimizer != "sgd":
        values = restored_values(target, gradient, protocol, parts[0], deadline)
        if values is not None:  # large entries, known by a bound alone, add directions of their own
            values = values.clamp(min=1.0)
            return int((values[:-1] / values[1:]).argmax()) + 1
    sent = FeasibleSet([matrix])
    if sent.complete or (looks_rounded(target, gradient) and not sent.signs_only):
        return whiten(matrix).rank or None
    return _count_by_rank(parts[-1].weight_in(gradient), deadline)


def _count_behind_steps(matrix: Tensor, training: FedAvg, clients: int, deadline: Deadline | None) -> int | None:
    """Return the number of sentences behind several steps of Adam, which have no low rank unless there is one.

    The protocol says how many a client with so many steps and mini-batches takes, if it has as many; where it does
    not, the steps are much like the sign of one gradient.
    """
    values = torch.linalg.svdvals(matrix.double()).square()
    if float(values[0] / values.sum()) > ALONE:
        return 1
    if training.steps is not None and training.batch is not None:
        return training.steps * training.batch * training.accumulate * clients
    return _count_by_rank(matrix.sign(), deadline)


def _count_by_rank(matrix: Tensor, deadline: Deadline | None) -> int | None:
    """Return the least rank of a matrix that would have been sent as this one; None if all are too small."""
    some = torch.randperm(len(matrix), generator=torch.Generator().manual_seed(0))[:ROWS].to(matrix.device)
    sent = FeasibleSet([matrix[some]])
    tolerance = SIGNS_MET if sent.signs_only else VALUES_MET
    for rank in range(1, min(MOST, *sent.values.shape) + 1):
        if deadline is not None and deadline.passed:
            break
        if sent.distance(complete_by_rank(sent, rank)) < tolerance:
            return rank
    return None
