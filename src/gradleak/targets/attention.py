"""The attention implementation that every target is loaded with (`loading.py`).

It combines three properties that no stock implementation has at once: second derivatives (fused kernels have none),
dropout through the model's own `nn.Dropout` modules (one way to watch or replace every dropout of a model), and no
branch on the mask's values (which would synchronise a GPU).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "gradleak"
DROPOUT_CHILDREN = ("dropout", "attn_dropout", "attention_dropout")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Return softmax(query · keyᵀ · scaling + mask) · value and the attention weights.

    Args:
        module: the calling attention module; its dropout child is applied to the weights.
        query: `[sequences, heads, tokens, head width]`.
        key: `[sequences, key heads, tokens, head width]`; each head serves `heads / key heads` heads of queries.
        value: like `key`.
        attention_mask: additive mask of the scores `[sequences, 1, 1 or tokens, tokens]`.
        scaling: factor of the scores; 1/√(head width) by default.
        softcap: bound of the scores, which pass through softcap · tanh(scores / softcap) (Gemma 2).

    The caller's dropout rate is ignored: the child module has its own.
    """
    key, value = (_for_each_query(tensor, query.shape[1]) for tensor in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.matmul(query, key.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = _dropout_child(module)(torch.softmax(scores, dim=-1))
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _for_each_query(tensor: Tensor, heads: int) -> Tensor:
    """Return keys or values `[sequences, heads, tokens, head width]`, repeated where queries share them."""
    sequences, own, tokens, width = tensor.shape
    if own == heads:
        return tensor
    shared = tensor[:, :, None].expand(sequences, own, heads // own, tokens, width)
    return shared.reshape(sequences, heads, tokens, width)


def _dropout_child(module: nn.Module) -> nn.Module:
    return next(child for name, child in module.named_children() if name in DROPOUT_CHILDREN)


AttentionInterface.register(NAME, attention)
# Without a mask function of the same name, transformers silently drops a two-dimensional mask.
AttentionMaskInterface.register(NAME, eager_mask)
