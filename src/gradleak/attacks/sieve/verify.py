"""Proofs that a reconstruction is exact, without knowing the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.labels import padded
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.matching import vanishing_parameters
from gradleak.targets import Target

WHOLE = 1e-5
"""Two float32 gradients of one batch differ by about 1e-6 of their norm; of batches that differ, by 1e-3 or more."""

EACH = 1e-3
"""The same for a single tensor, of which some are sums that nearly cancel."""

SURPLUS = 64
"""How many bits more than needed to tell all tokens, positions and masks apart the equations must hold."""


def gradient_of(
    target: Target, sentences: Sequence[Sequence[int]], labels: Sequence[int] | None, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return the gradient that a client without dropout computes on a batch."""
    ids, mask = padded(target, sentences)
    classes = ids if target.task == "causal-lm" else torch.tensor(labels, device=target.device)
    leaves = {name: target.parameters[name].detach().clone().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = target.loss_with(leaves, ids, mask, classes)
        values = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, values, strict=True))


def difference(
    target: Target, observed: Mapping[str, Tensor], sentences: Sequence[Sequence[int]], labels: Sequence[int] | None
) -> tuple[float, float]:
    """Return how far a batch's gradient is from the observed one, as shares: of the whole, and of the worst tensor.

    Tensors that hold next to nothing of the whole are not judged alone: they are rounding.
    """
    names = [name for name in observed if name not in vanishing_parameters(target)]
    found = gradient_of(target, sentences, labels, names)
    sizes = {name: float(observed[name].double().norm()) for name in names}
    misses = {name: float((found[name].double() - observed[name].double()).norm()) for name in names}
    whole = math.hypot(*sizes.values())
    if not whole:
        return math.inf, math.inf
    worst = max((misses[name] / size for name, size in sizes.items() if size > 1e-3 * whole), default=math.inf)
    return math.hypot(*misses.values()) / whole, worst


def reproduces(
    target: Target, observed: Mapping[str, Tensor], sentences: Sequence[Sequence[int]], labels: Sequence[int] | None
) -> bool:
    """Return whether a batch's gradient is the observed one, to rounding: the proof where no dropout is active."""
    if not sentences or (labels is None and target.task == "classification"):
        return False
    whole, worst = difference(target, observed, sentences, labels)
    return whole < WHOLE and worst < EACH


def unexplained(gradient: Tensor, rows: Tensor) -> float:
    """Return ‖G − G X⁺X‖ / ‖G‖: the share of a gradient that the rows found do not account for."""
    gradient, rows = gradient.double(), rows.double()
    basis = torch.linalg.qr(rows.T)[0]
    return float((gradient - (gradient @ basis) @ basis.T).norm() / gradient.norm())


def certain(space: Subspace, dropped: float, vocabulary: int, accuracy: float) -> bool:
    """Return whether no wrong token could have been decoded by chance.

    A mask and a token carry width · H(dropped) + log₂(vocabulary · positions) bits; every dimension outside the row
    space is an equation that holds to `accuracy` and rules out all but that share of them.
    """
    share = min(max(dropped, 1e-3), 0.5)
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    needed = space.width * entropy + math.log2(vocabulary * max(space.rank, 1))
    return (space.width - space.rank) * -math.log2(accuracy) > needed + SURPLUS
