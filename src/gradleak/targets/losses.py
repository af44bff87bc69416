"""Cross-entropy that is differentiable twice, and a batch's loss under other parameters; used by `target.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from gradleak.targets.target import Target


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy `[…]` of logits `[…, classes]` against classes `[…]` or distributions `[…, classes]`."""
    log_probabilities = torch.log_softmax(logits, dim=-1)
    if labels.is_floating_point():
        return -(labels * log_probabilities).sum(dim=-1)
    return -log_probabilities.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


class BatchLoss(nn.Module):
    """A batch's mean loss as a module: `functional_call` can then swap every parameter, word embeddings included."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.model = target.model
        self._target = [target]  # in a list: the target must not be registered as a part of this module

    def forward(self, inputs: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of token ids `[sequences, tokens]` or word embeddings `[sequences, tokens, width]`."""
        target = self._target[0]
        embeddings = inputs if inputs.is_floating_point() else target.embed(inputs)
        return target.sequence_losses(embeddings, mask, labels).mean()
