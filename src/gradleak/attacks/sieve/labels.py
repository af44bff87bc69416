"""The classes of known sentences, in closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.targets import Target


def padded(target: Target, sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids and mask `[sentences, tokens]` of sentences of several lengths."""
    longest = max(map(len, sentences))
    ids = torch.full((len(sentences), longest), target.tokenizer.pad_token_id)
    mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
    for number, sentence in enumerate(sentences):
        ids[number, : len(sentence)] = torch.tensor(sentence)
        mask[number, : len(sentence)] = True
    return ids.to(target.device), mask.to(target.device)


def read_labels(target: Target, gradient: Mapping[str, Tensor], sentences: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the class of each sentence from the classifier's gradient; None if it was not sent.

    The classifier's gradient is Σ_s (p_s − y_s) h_sᵀ / B. What the classifier is fed, h_s, and the probabilities p_s
    follow from the sentences, so that y = p − B · dW H⁺: exact without dropout, close enough with it.
    """
    observed = gradient.get(f"{target.classifier}.weight")
    if target.task != "classification" or observed is None or not sentences:
        return None
    fed: list[Tensor] = []
    module = target.model.get_submodule(target.classifier)
    handle = module.register_forward_pre_hook(lambda _, inputs: fed.append(inputs[0]))
    ids, mask = padded(target, sentences)
    try:
        with torch.no_grad():
            logits: Any = target.family.logits(target.model, target.embed(ids), mask, target.task)
    finally:
        handle.remove()
    rows, weights = fed[-1].double(), observed.double()
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is not None:  # a further input that is always 1
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
        weights = torch.cat([weights, bias.double()[:, None]], dim=1)
    error = len(sentences) * weights @ torch.linalg.pinv(rows, rtol=1e-9)  # [classes, sentences]: p − y
    return (torch.softmax(logits.double(), dim=-1).T - error).argmax(dim=0).tolist()
