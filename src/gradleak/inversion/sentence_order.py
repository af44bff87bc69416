"""Loss and accuracy of batches whose sentences may be answered in any order: an update does not show their order."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional


def matched_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy, with each answer compared with its sentence in the most likely order.

    Args:
        logits: `[examples, sequences, tokens, vocabulary]`.
        ids: `[examples, sequences, tokens]`.
    """
    if ids.shape[1] > 1:
        ids = take_order(ids, best_orders(logits.detach(), ids).argsort(dim=1))
    return functional.cross_entropy(logits.flatten(0, 2), ids.flatten())


def best_orders(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the index of the answer to each sentence `[examples, sequences]` in the order of largest likelihood."""
    examples, sequences, _ = ids.shape
    if sequences == 1:
        return torch.zeros(examples, 1, dtype=torch.long, device=ids.device)
    chances = logits.log_softmax(dim=-1)
    each = [chances.gather(-1, ids[:, s, None, :, None].expand(-1, sequences, -1, 1)) for s in range(sequences)]
    likelihood = torch.stack([chance.sum(dim=(2, 3)) for chance in each], dim=1)  # [examples, sentences, answers]
    orders = torch.tensor(list(itertools.permutations(range(sequences))), device=ids.device)  # [orders, sequences]
    every = torch.arange(sequences, device=ids.device)
    return orders[likelihood[:, every, orders].sum(dim=2).argmax(dim=1)]


def take_order(rows: Tensor, order: Tensor) -> Tensor:
    """Return rows `[examples, sequences, tokens]` with their sequences in another order `[examples, sequences]`."""
    return rows.gather(1, order[:, :, None].expand(-1, -1, rows.shape[2]))
