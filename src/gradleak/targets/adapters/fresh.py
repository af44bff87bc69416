"""A fresh LoRA adapter on a target: drawn from the public model seed, so that every process has the same one."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gradleak.assets import sample_texts
from gradleak.errors import GradleakError
from gradleak.targets.adapters.injection import check_unadapted, default_heads, inject, matching_modules
from gradleak.targets.adapters.lora import Lora
from gradleak.targets.target import Target

STEP = 1e-3
"""By how much one step on public text changes an entry: five steps of AdamW at a rate of 2e-4."""

TEXTS, MOST_TOKENS = 4, 16
"""Texts in one of these steps, and the longest of them that is taken."""


def with_lora(target: Target, lora: Lora) -> Target:
    """Return a target with a fresh adapter, which shares its model with the one given: use only that returned.

    Raises:
        GradleakError: if the settings do not fit the model, or PEFT is not installed.
    """
    check_unadapted(target)
    heads = default_heads(target)
    paths, targets = matching_modules(target, lora, heads)
    options = {"r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout, "use_rslora": lora.rslora}
    adapted = inject(target, paths, options, heads=heads, lora=replace(lora, targets=targets))
    _draw(adapted)
    if lora.rounds:
        _train(adapted, lora.rounds)
    return adapted


@torch.no_grad()
def _draw(target: Target) -> None:
    """Draw A as PEFT does by default, uniformly within ±1 / √inputs, each from its own stream; set B to zero."""
    assert target.adapter is not None
    for module in target.adapter.modules:
        a, b = target.parameters[module.a], target.parameters[module.b]
        stream = np.random.default_rng([target.seed, zlib.crc32(module.a.encode())])
        bound = a.shape[1] ** -0.5
        a.copy_(torch.from_numpy(stream.uniform(-bound, bound, tuple(a.shape)).astype(np.float32)))
        b.zero_()


def _train(target: Target, rounds: int) -> None:
    """Take steps of equal size along the sign of the gradient on public text, as AdamW's first step does.

    In float64 and with signs, so that another process, whatever its number of threads, gets the same weights to the
    last bit: they are part of the target's fingerprint.
    """
    dtype, names = target.dtype, target.trained_parameters
    start = {name: target.parameters[name].detach().clone() for name in names}
    moved = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    target.to(dtype=torch.float64)
    try:
        for ids, mask, labels in _public_batches(target, rounds):
            leaves = {name: (start[name] + moved[name]).requires_grad_() for name in names}
            loss = target.loss_with(leaves, ids, mask, labels)
            slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
            for name, slope in zip(names, slopes, strict=True):
                moved[name] -= STEP * slope.sign()
    finally:
        target.to(dtype=dtype)
    with torch.no_grad():
        for name in names:
            target.parameters[name].copy_(start[name] + moved[name])


def _public_batches(target: Target, rounds: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return ids, mask and labels of so many batches of shipped sample text, with classes from the model's seed."""
    rows = target.tokenizer(list(sample_texts()))["input_ids"]
    longest = min(MOST_TOKENS, target.max_length)
    fitting = [row for row in rows if target.min_length <= len(row) <= longest]
    if not fitting:
        raise GradleakError(f"no shipped text fits {target.name}, which takes {longest} tokens: give rounds=0")
    stream = torch.Generator().manual_seed(target.seed)
    batches = []
    for number in range(rounds):
        ids, mask = target.pad([fitting[(number * TEXTS + i) % len(fitting)] for i in range(TEXTS)])
        drawn = torch.randint(target.num_labels, (TEXTS,), generator=stream).to(target.device)
        batches.append((ids, mask, drawn if target.task == "classification" else ids))
    return batches
