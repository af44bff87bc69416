"""The rounding of float32 weights, as it shows in the difference of two of them.

A small step of SGD changes a float32 weight by about as much as float32 resolves there: a weight of 0.05 in steps of
4e-9, one of 0.005 ten times as finely. The attacker has the weights, and so knows how well each entry of the difference
is known. Steps of less than half that distance are lost, so what one text leaves there depends on the others: where
some of them are known, it is compared with what is left of theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.exchange import FedAvg

LIVELY = 0.2
"""A weight shows something if its steps vary by at least this fraction of the spacing there."""

SMOOTH = 0.6
"""Steps that vary by more than this fraction of the spacing are rounded as any number is: without a bias."""

UNSEEN = 1e3
"""Standard deviation of entries that steps do not show, relative to the root mean square."""

LEAST_SLOPE = 0.01
"""The least change of what is seen with a gradient, relative to its own."""


def spacing(sizes: Tensor) -> Tensor:
    """Return the distance of neighbouring float32 numbers of given sizes."""
    return torch.finfo(torch.float32).eps * torch.exp2(sizes.clamp(min=1e-30).log2().floor())


def sgd_deviation(weight: Tensor, training: FedAvg, texts: int | None = None) -> Tensor:
    """Return the standard deviation that rounding gives each entry of a gradient, read from steps of SGD.

    Args:
        weight: the weights before training.
        training: the protocol. Every step rounds, those on the same texts alike.
        texts: the number of the client's texts; None if it is not known.
    """
    return spacing(weight.double().abs()) / (12 * training.distinct_steps(texts)) ** 0.5 / training.lr


def rest_of_gradient(
    rest: Tensor, parts: tuple[Tensor, Tensor], weight: Tensor, training: FedAvg, texts: int
) -> tuple[Tensor, Tensor]:
    """Return what steps of SGD show of a gradient beside a part that is known, and how well each entry is known.

    The number of spacings by which a weight moves is compared with that to be expected of the known part: rounded step
    by step, where the steps differ at random from their mean. What it says of the rest follows from its slope.

    Args:
        rest: the gradient without the known part, from the difference of weights.
        parts: the known part, and the sum of the squares of its texts' parts.
        weight: the weights before training.
        training: the protocol.
        texts: the number of all texts.
    """
    unit, steps = spacing(weight.double().abs()) / training.lr, training.distinct_steps(texts)
    rest, known, squares = (own.double() for own in (rest, *parts))
    usual = rest.square().mean(dim=1, keepdim=True) * rest.square().mean(dim=0) / rest.square().mean().clamp(min=1e-300)
    spread = ((steps - 1) * squares).sqrt() / unit
    unsure = (spread.square() + steps * usual / unit.square()).sqrt()
    mean, slope, variance = _rounded((known / unit).float(), unsure.float())
    alike = torch.exp(-4 * torch.pi**2 * spread.square())  # steps that hardly differ are rounded alike
    variance = variance * (alike + (1 - alike) / steps)
    found = unit * ((rest + known) / unit - mean) / slope
    deviation = unit * variance.sqrt() / slope
    lost = unsure < LIVELY
    found = found.masked_fill(lost, 0.0)
    return found, deviation.masked_fill(lost, UNSEEN * float(found.square().mean().sqrt()))


def _rounded(numbers: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and slope of normal variables rounded to whole numbers, and their variance beside that slope.

    Args:
        numbers: the means before rounding.
        deviation: the standard deviations.
    """
    whole, width = numbers.round(), deviation.clamp(min=LIVELY / 2, max=SMOOTH)
    off = numbers - whole
    mean, slope, square = torch.zeros_like(off), torch.zeros_like(off), torch.zeros_like(off)
    for step in range(1, 4):
        up, down = ((sign * off - step + 0.5) / width for sign in (1, -1))
        above, below = torch.special.ndtr(up), torch.special.ndtr(down)
        mean += above - below
        square += (2 * step - 1) * (above + below)
        slope += (torch.exp(-up.square() / 2) + torch.exp(-down.square() / 2)) / (2 * torch.pi) ** 0.5 / width
    variance = square - mean.square() - (slope * width).square()
    smooth = deviation > SMOOTH
    mean = torch.where(smooth, numbers, whole + mean).double()
    slope = torch.where(smooth, 1.0, slope.clamp(min=LEAST_SLOPE)).double()
    return mean, slope, torch.where(smooth, 1 / 12, variance.clamp(min=1e-6)).double()
