"""Undo some of the rounding in a difference of weights.

A small step of SGD changes a float32 weight by about as much as float32 resolves there: a weight of 0.05 in steps of
4e-9, one of 0.005 ten times as finely. The attacker has the weights, and so knows how well each entry of the difference
is known. The gradient of a linear map has low rank, which the precise entries determine for the others, too: a
weighted low-rank approximation, by expectation maximisation with momentum (Srebro & Jaakkola 2003; Nesterov 1983).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.exchange import Protocol
from gradleak.leakage.noise_floor import whiten
from gradleak.targets import Projection, Target

COARSE = 0.05
"""Rounding below this fraction of an update's entries needs no treatment."""

MORE = 1.25
"""The rank of the approximation, relative to the directions that exceed the noise before: some are hidden by it."""

PRECISE = (0.9, 0.6, 0.3, 0.1)
"""The most precise fraction of the entries counts fully, the others by their variance: first nearly all, which finds
the approximation quickly, then fewer, which makes it better."""

STEPS = 15
"""Steps of expectation maximisation for each of these."""


def spacing(sizes: Tensor) -> Tensor:
    """Return the distance of neighbouring float32 numbers of given sizes."""
    return torch.finfo(torch.float32).eps * torch.exp2(sizes.clamp(min=1e-30).log2().floor())


def restored(
    target: Target, gradient: Mapping[str, Tensor], protocol: Protocol, groups: Sequence[Sequence[Projection]]
) -> dict[str, Tensor]:
    """Return gradients with the rounding of some maps reduced; as they are if little was rounded.

    Args:
        target: the model before training.
        gradient: gradients by name, from a difference of weights.
        protocol: how the update was made.
        groups: maps with the same inputs, whose gradients are restored together.
    """
    training = protocol.training
    if training is None or training.optimizer != "sgd" or training.steps is None:
        return dict(gradient)
    scale = (training.steps / 12) ** 0.5 / (training.lr * training.steps)
    found = dict(gradient)
    for group in groups:
        names = [part.weight for part in group if part.weight in gradient]
        rounding = [spacing(target.parameters[name].detach().abs().double()) * scale for name in names]
        own = [gradient[name].double() for name in names]
        if not names or any(len(each.shape) != 2 for each in own):
            continue
        matrix, deviation = torch.cat(own), torch.cat(rounding)
        if not deviation.square().mean() > COARSE**2 * matrix.square().mean():
            continue
        better = torch.split(_low_rank(matrix, deviation), [len(each) for each in own])
        found |= {name: part.to(gradient[name].dtype) for name, part in zip(names, better, strict=True)}
    return found


def _low_rank(matrix: Tensor, deviation: Tensor) -> Tensor:
    """Return a matrix with imprecise entries replaced by what a low-rank fit to the precise ones says of them."""
    rank = min(int(MORE * whiten(matrix).rank) + 1, min(matrix.shape))
    variance = deviation.square()
    few = variance.flatten()[:: max(1, variance.numel() // 2**16)]
    space = torch.linalg.svd(matrix, full_matrices=False)[2][:rank].T
    guess = (matrix @ space) @ space.T
    for precise in PRECISE:
        weights = (few.quantile(precise) / variance).clamp(max=1.0)
        before = guess
        for step in range(STEPS):
            further = guess + step / (step + 3) * (guess - before)
            filled = further + weights * (matrix - further)
            space = torch.linalg.qr(filled.T @ (filled @ space))[0]
            before, guess = guess, (filled @ space) @ space.T
    return guess + weights * (matrix - guess)
