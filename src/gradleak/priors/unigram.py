"""The marginal token distribution: how often each token occurs, whatever stands around it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.targets import Target

# What a token that was never seen counts for: less than once, or the many of them would outweigh those seen.
UNSEEN = 0.05


def marginal_distribution(target: Target, texts: Sequence[str]) -> Tensor:
    """Return the share of each token `[vocabulary]` in texts, see `marginal_of_tokens`."""
    rows = target.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    return marginal_of_tokens(target, torch.tensor([index for row in rows for index in row], dtype=torch.long))


def marginal_of_tokens(target: Target, ids: Tensor) -> Tensor:
    """Return the share of each token `[vocabulary]` among token ids.

    Every token that a text may hold gets a little; special and unused tokens get nothing.
    """
    if not ids.numel():
        raise GradleakError("there is no text to count tokens in")
    counts = torch.bincount(ids.flatten().cpu(), minlength=len(target.word_embeddings)).double() + UNSEEN
    counts[list(target.impossible_ids)] = 0.0
    return counts / counts.sum()
