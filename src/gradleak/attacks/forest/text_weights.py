"""Which of some texts an update holds: each one's weight in it, by non-negative least squares.

Noise, and weights that moved between local steps, leave rows that prefixes of no text explain a little, and whole texts
grow from these. In the whole update such a text has next to no weight beside the right ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from scipy.optimize import nnls
from torch import Tensor

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.leakage.labels import labels_from_classifier
from gradleak.leakage.recompute import batch_gradient
from gradleak.targets import Target

LIGHT = 0.25
"""A text is superfluous if it has less than this fraction of the heaviest one's weight; a client's texts weigh alike,
but for smaller mini-batches and copies."""

NEEDED = 1.05
"""It is superfluous, too, if without it no more than this many times as much of the update is left."""


def without_light_texts(target: Target, gradient: Mapping[str, Tensor], texts: Sequence[Prefix]) -> list[Prefix]:
    """Return the texts without those that have next to no weight in an update.

    Args:
        target: a decoder.
        gradient: gradients by name.
        texts: texts, some of which may not have been trained on.
    """
    known = [text for text in dict.fromkeys(texts) if len(text) >= target.min_length]
    if len(known) < 2:
        return list(texts)
    names = _names(target, gradient)
    columns = _columns(target, gradient, known, names)
    observed = torch.cat([gradient[name].flatten().double() for name in names])
    basis = torch.linalg.qr(torch.cat([columns, observed[None]]).T).R.cpu()  # as long as there are texts
    columns, wanted = basis[:, :-1], basis[:, -1]
    kept = list(range(len(known)))
    weights, left = _solved(columns[:, kept], wanted)
    while len(kept) > 1:
        light = int(weights.argmin())
        rest = [[*kept[:place], *kept[place + 1 :]] for place in range(len(kept))]
        tried = [_solved(columns[:, numbers], wanted) for numbers in rest]
        place = min(range(len(kept)), key=lambda one: tried[one][1])
        if float(weights[light]) < LIGHT * float(weights.max()):
            place = light
        elif tried[place][1] > NEEDED * left:
            break
        kept, (weights, left) = rest[place], tried[place]
    return [known[number] for number in kept]


def _solved(columns: Tensor, wanted: Tensor) -> tuple[Tensor, float]:
    """Return non-negative weights of columns, and what they leave of a vector."""
    weights, left = nnls(columns.numpy(), wanted.numpy())
    return torch.from_numpy(weights), float(left)


def _names(target: Target, gradient: Mapping[str, Tensor]) -> list[str]:
    """Return all tensors of adapters; of a full update, those of the first and the last layer's attention."""
    if target.adapter is not None:
        return list(gradient)
    parts = [part for layer in (target.layers[0], target.layers[-1]) for part in (layer.value, layer.attention_output)]
    return list(dict.fromkeys(part.weight for part in parts if part.weight in gradient))


def _columns(target: Target, gradient: Mapping[str, Tensor], texts: Sequence[Prefix], names: Sequence[str]) -> Tensor:
    """Return the gradient of each text by itself `[texts, numbers]`."""
    labels = labels_from_classifier(target, gradient, list(texts)) or [0] * len(texts)
    rows = []
    for text, label in zip(texts, labels, strict=True):
        own = batch_gradient(target, [text], [label], names)
        rows.append(torch.cat([own[name].flatten().double() for name in names]))
    return torch.stack(rows)
