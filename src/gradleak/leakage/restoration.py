"""Restore gradients of linear maps from what small steps show of them.

Rounding leaves entries known to different precision, and low rank does the rest (`low_rank.py`). Several steps of Adam
have lost the sizes of a gradient's entries: each was divided by its own. What a column of a gradient has in common is
the size of the map's inputs there, which random texts show as well as private ones: with columns scaled by it, the row
space of the steps comes closer to that of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.first_step import are_steps, first_step_deviation
from gradleak.leakage.low_rank import fit_low_rank
from gradleak.leakage.noise_floor import NoiseFloor
from gradleak.leakage.recompute import random_texts
from gradleak.leakage.weight_rounding import rest_of_gradient, sgd_deviation
from gradleak.targets import Projection, Target
from gradleak.targets.hooks import captured_inputs

USUAL_TEXTS = (32, 12)
"""Number and words of the random texts that show the usual size of a map's inputs."""

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


@dataclass(frozen=True)
class KnownPart:
    """A part of a gradient that is known, by parameter name: the sum over some texts.

    Attributes:
        gradient: the part.
        squares: the sum of the squares of each text's part.
    """

    gradient: Mapping[str, Tensor]
    squares: Mapping[str, Tensor]


def restore(
    target: Target,
    gradient: Mapping[str, Tensor],
    protocol: Protocol,
    groups: Iterable[Sequence[Projection]],
    deadline: Deadline | None = None,
    texts: int | None = None,
    known: KnownPart | None = None,
) -> Restoration:
    """Return gradients with the rounding of some maps reduced; as they are if little was rounded.

    Args:
        target: the model before training.
        gradient: gradients by name, from a difference of weights.
        protocol: how the update was made.
        groups: maps with the same inputs, whose gradients are restored together.
        deadline: when to stop.
        texts: the number of the client's texts; None if it is not known.
        known: what was subtracted from the gradients, of steps of SGD by a known number of texts; None for nothing.
    """
    training = protocol.training
    if training is None:
        return Restoration(gradient, {})
    whole = complete_groups(groups, gradient)
    if training.optimizer != "sgd" and are_steps(gradient):
        return Restoration(_with_usual_columns(target, gradient, whole), {})
    found, floors = dict(gradient), {}
    for group in whole:
        if deadline is not None and deadline.passed:
            break
        matrix = stacked(group, gradient).double()
        weight = stacked(group, target.parameters).detach()
        if known is not None and texts is not None:
            parts = stacked(group, known.gradient), stacked(group, known.squares)
            matrix, deviation = rest_of_gradient(matrix, parts, weight, training, texts)
        elif training.optimizer == "sgd":
            deviation = sgd_deviation(weight, training, texts)
        else:
            deviation = first_step_deviation(weight, matrix, training, protocol.send)
        if known is None and not deviation.square().mean() > COARSE**2 * matrix.square().mean():
            continue
        fit = fit_low_rank(matrix, deviation, deadline)
        floors[group[0].module] = fit.floor
        found |= unstacked(group, fit.matrix, found)
    return Restoration(found, floors)


def restored_values(
    target: Target,
    gradient: Mapping[str, Tensor],
    protocol: Protocol,
    part: Projection,
    deadline: Deadline | None = None,
) -> Tensor | None:
    """Return the singular values of one map's gradient, restored, in units of its noise; None if little was rounded."""
    found = restore(target, gradient, protocol, [[part]], deadline)
    floor = found.floors.get(part.module)
    return None if floor is None else floor.spectrum(part.weight_in(found.gradient)).values


def _with_usual_columns(
    target: Target, gradient: Mapping[str, Tensor], groups: Sequence[Sequence[Projection]]
) -> dict[str, Tensor]:
    """Return steps of Adam with columns as large as the inputs of their maps usually are."""
    paths = [group[0].module for group in groups]
    inputs = captured_inputs(target, random_texts(target, *USUAL_TEXTS), paths)
    found = dict(gradient)
    for group in groups:
        sizes = inputs[group[0].module].flatten(0, 1).square().mean(dim=0).sqrt()
        found |= unstacked(group, stacked(group, gradient) * sizes, found)
    return found


def complete_groups(
    groups: Iterable[Sequence[Projection]], gradient: Mapping[str, Tensor]
) -> list[Sequence[Projection]]:
    """Return the groups of maps that were sent whole, each a block of rows."""
    return [
        group for group in groups if all(part.weight in gradient and isinstance(part.rows, slice) for part in group)
    ]


def stacked(group: Sequence[Projection], tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the matrices of maps with the same inputs, one above the other."""
    return torch.cat([part.weight_in(tensors) for part in group])


def unstacked(group: Sequence[Projection], matrix: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of maps with the same inputs, with other matrices in them."""
    found = {part.weight: tensors[part.weight].clone() for part in group}
    sizes = [len(part.weight_in(tensors)) for part in group]
    for part, own in zip(group, torch.split(matrix, sizes), strict=True):
        part.weight_in(found).copy_(own)
    return found
