"""Restore gradients of linear maps from entries that rounding left known to different precision (`low_rank.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange import Deadline, FedAvg, Protocol
from gradleak.leakage.first_step import first_step_deviation
from gradleak.leakage.low_rank import fit_low_rank
from gradleak.leakage.noise_floor import NoiseFloor
from gradleak.leakage.weight_rounding import sgd_deviation
from gradleak.targets import Projection, Target

COARSE = 0.05
"""Rounding below this fraction of an update's entries needs no treatment."""


@dataclass(frozen=True)
class Restoration:
    """Gradients of which some maps were restored.

    Attributes:
        gradient: gradients by name.
        floors: what is left of the noise, by the module of the first map of each group that was restored; empty if
            little was rounded.
    """

    gradient: Mapping[str, Tensor]
    floors: Mapping[str, NoiseFloor]


def restore(
    target: Target,
    gradient: Mapping[str, Tensor],
    protocol: Protocol,
    groups: Iterable[Sequence[Projection]],
    deadline: Deadline | None = None,
) -> Restoration:
    """Return gradients with the rounding of some maps reduced; as they are if little was rounded.

    Args:
        target: the model before training.
        gradient: gradients by name, from a difference of weights.
        protocol: how the update was made.
        groups: maps with the same inputs, whose gradients are restored together.
        deadline: when to stop.
    """
    found, floors = dict(gradient), {}
    for group in groups if _is_known_by_entry(protocol.training) else ():
        parts = [part for part in group if part.weight in gradient and isinstance(part.rows, slice)]
        if len(parts) < len(group) or (deadline is not None and deadline.passed):
            continue
        matrix = torch.cat([part.weight_in(gradient) for part in parts]).double()
        deviation = torch.cat([_deviation(part.weight_in(target.parameters), part.weight_in(gradient), protocol) for part in parts])
        if not deviation.square().mean() > COARSE**2 * matrix.square().mean():
            continue
        fit = fit_low_rank(matrix, deviation, deadline)
        found |= {part.weight: found[part.weight].clone() for part in parts}
        rows = fit.matrix.split([len(part.weight_in(gradient)) for part in parts])
        for part, own in zip(parts, rows, strict=True):
            part.weight_in(found).copy_(own)
        floors[parts[0].module] = fit.floor
    return Restoration(found, floors)


def _is_known_by_entry(training: FedAvg | None) -> bool:
    """Return whether the precision of each entry follows from the weights: after SGD, or one step of Adam."""
    return training is not None and (training.optimizer == "sgd" or training.steps == 1)


def _deviation(weight: Tensor, gradient: Tensor, protocol: Protocol) -> Tensor:
    """Return the standard deviation of each entry of a gradient."""
    training = protocol.training
    if training is None:
        return torch.zeros_like(gradient)
    if training.optimizer == "sgd":
        return sgd_deviation(weight.detach(), training)
    return first_step_deviation(weight.detach(), gradient, training, protocol.send)
