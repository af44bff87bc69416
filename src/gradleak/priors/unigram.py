"""The marginal token distribution, from which LTI-P's pseudo text is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.targets import Target

PSEUDO_COUNT = 0.05  # added to every token's count; with 1, the many unseen tokens would outweigh those seen


def marginal_distribution(target: Target, texts: Sequence[str]) -> Tensor:
    """Return the frequency of each token `[vocabulary]` in texts, smoothed as in `marginal_of_tokens`."""
    rows = target.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    return marginal_of_tokens(target, torch.tensor([index for row in rows for index in row], dtype=torch.long))


def marginal_of_tokens(target: Target, ids: Tensor) -> Tensor:
    """Return the frequency of each token `[vocabulary]` among token ids.

    Unseen tokens get a small probability; special and unused tokens get none.
    """
    if not ids.numel():
        raise GradleakError("there is no text to count tokens in")
    counts = torch.bincount(ids.flatten().cpu(), minlength=len(target.word_embeddings)).double() + PSEUDO_COUNT
    counts[list(target.impossible_ids)] = 0.0
    return counts / counts.sum()
