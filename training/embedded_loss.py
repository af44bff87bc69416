"""Cross-entropy over 30,522 words, computed in chunks without storing the logits.

The output table is the widest part of both models: the logits of 64,000 positions would take 8 GB in
float32, written and read several times. Here the gradient of each chunk is computed in the forward
pass, right after its logits, and only the gradients of the inputs are kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

_ALIGNMENT = 64  # matrix kernels are markedly slower when the vocabulary is no multiple of eight
_CHUNK = 16_384


def _log_probabilities(hidden: Tensor, table: Tensor, bias: Tensor | None, words: int) -> Tensor:
    """Return float32 log-probabilities [positions, padded words] of one chunk."""
    logits = hidden @ table.T if bias is None else torch.addmm(bias, hidden, table.T)
    logits[:, words:] = -torch.inf
    return torch.log_softmax(logits, dim=-1, dtype=torch.float32)


def _padded(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    extra = -weight.shape[0] % _ALIGNMENT
    table = F.pad(weight.to(dtype), (0, 0, 0, extra))
    return table, None if bias is None else F.pad(bias.to(dtype), (0, extra))


class _LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of `hidden @ weight.T + bias`; gradients are computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch gives its type no public name
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        words = weight.shape[0]
        table, offset = _padded(weight, bias, dtype)
        hidden_grad = torch.empty_like(hidden)
        table_grad = torch.zeros(table.shape, dtype=torch.float32, device=table.device)
        bias_grad = torch.zeros(table.shape[0], dtype=torch.float32, device=table.device)
        total = torch.zeros((), dtype=torch.float32, device=table.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for at in range(0, len(hidden), _CHUNK):
                chunk = hidden[at : at + _CHUNK].to(dtype)
                target = targets[at : at + _CHUNK, None]
                logs = _log_probabilities(chunk, table, offset, words)
                total -= logs.gather(1, target).sum()
                exact = logs.exp_()
                exact.scatter_add_(1, target, exact.new_full((1, 1), -1.0).expand_as(target))
                if bias is not None:
                    bias_grad += exact.sum(0)
                rounded = exact.to(dtype)
                hidden_grad[at : at + _CHUNK] = rounded @ table
                table_grad += rounded.T @ chunk
        count = len(hidden)
        ctx.has_bias = bias is not None
        ctx.save_for_backward(hidden_grad / count, table_grad[:words] / count, bias_grad[:words] / count)
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (grad,) = grads
        hidden_grad, table_grad, bias_grad = ctx.saved_tensors
        return (
            grad * hidden_grad,
            grad * table_grad,
            grad * bias_grad if ctx.has_bias else None,
            None,
            None,
        )


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the mean cross-entropy of the words predicted at some positions.

    Args:
        hidden: Last hidden states at the positions, [positions, hidden].
        weight: The output table, [words, hidden].
        bias: The output bias, [words], or None.
        targets: The true words, [positions].
        dtype: Type of the matrix products; the softmax is always in float32.
    """
    loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, bias, targets, dtype)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def score_words(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihood at each position, and whether the top word is the true one."""
    table, offset = _padded(weight, bias, torch.float32)
    losses, hits = [], []
    for at in range(0, len(hidden), _CHUNK // 4):
        target = targets[at : at + _CHUNK // 4]
        chunk = hidden[at : at + _CHUNK // 4].float()
        logs = _log_probabilities(chunk, table, offset, weight.shape[0])
        losses.append(-logs.gather(1, target[:, None])[:, 0])
        hits.append(logs.argmax(dim=1) == target)
    return torch.cat(losses), torch.cat(hits)
