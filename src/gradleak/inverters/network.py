"""The inverter: a network that maps the features of a gradient to tokens (LTI, sections 3 and 4.2).

`gradleak.inversion` trains it and `gradleak.attacks.lti` reads updates with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradleak.inverters.card import Card
from gradleak.inverters.features import HashedGradient, KeptRows, Reduction
from gradleak.targets import Target

# Features are clamped to this many standard deviations. Without it an entry that survives pruning once in a thousand
# examples dominates all others.
MOST_DEVIATIONS = 10.0


class Inverter(nn.Module):
    """A multi-layer perceptron from features to a distribution over tokens at every position.

    Args:
        card: its settings, and what it is for.
        reduction: computes its features from a gradient.
        target: the model whose gradients it reads; gives the word embeddings and the device.
    """

    mean: Tensor
    scale: Tensor
    table: Tensor

    def __init__(self, card: Card, reduction: Reduction, target: Target) -> None:
        super().__init__()
        self.card, self.reduction = card, reduction
        vocabulary, width = target.word_embeddings.shape
        outputs_per_position = width if card.output == "words" else vocabulary
        sizes = (reduction.features, *card.hidden, card.sequences * card.tokens * outputs_per_position)
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        # Not in the paper: much of the inverse is linear, see docs/attacks/lti.md.
        self.direct = nn.Linear(sizes[0], sizes[-1], bias=False) if card.direct else None
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if card.output == "words" else None
        self.register_buffer("mean", torch.zeros(reduction.features))
        self.register_buffer("scale", torch.ones(reduction.features))
        self.register_buffer("table", _normalised_words(target.word_embeddings), persistent=False)
        self.to(target.device)

    def calibrate(self, features: Tensor) -> None:
        """Set the normalisation of the features from the mean and deviation of a first batch of them."""
        deviation, self.mean = torch.std_mean(features.float(), dim=0)
        self.scale = 1.0 / deviation.clamp(min=1e-6 * float(deviation.max()) + 1e-30)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `[examples, sequences, tokens, vocabulary]` of features `[examples, features]`."""
        normalised = ((features.float() - self.mean) * self.scale).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
        output = self.body(normalised)
        if self.direct is not None:
            output = output + self.direct(normalised)
        output = output.view(len(features), self.card.sequences, self.card.tokens, -1)
        # The paper has a logit for every token. With `words` the output is an embedding at each position, and a token's
        # logit is its product with the token's word embedding.
        return output if self.bias is None else functional.linear(output, self.table, self.bias)


def build_reduction(card: Card, target: Target, tensors: Mapping[str, Tensor]) -> Reduction:
    """Return the reduction that a card describes.

    Args:
        card: names the kind of features and the parameters that are read.
        target: the model.
        tensors: what `Reduction.tensors` returned when the inverter was saved.
    """
    shapes = {name: target.parameters[name].shape for name in card.parameters}
    if card.reduction == "hash":
        return HashedGradient({name: shape.numel() for name, shape in shapes.items()}, card.share, card.seed)
    rows = {name: tensors[f"rows.{name}"] for name in card.parameters}
    return KeptRows(rows, {name: shape[1:].numel() for name, shape in shapes.items()})


def _normalised_words(table: Tensor) -> Tensor:
    """Return word embeddings centred and scaled to length one: a long embedding would make its word likelier."""
    centred = table.detach().float() - table.detach().float().mean(dim=0)
    return functional.normalize(centred, dim=1)
