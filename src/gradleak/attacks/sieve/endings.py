"""The last token of each sentence of a language model, which feeds no map and leaves no row.

It is only predicted. The gradient of the last LayerNorm is a sum over all predictions of (p − y) W, and everything in
it follows from the sentences but the rows W_y of the tokens that end them: these are found one sentence at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.attacks.sieve.labels import padded
from gradleak.optimisation.slots import impossible_words
from gradleak.targets import Target


def with_endings(
    target: Target, gradient: Mapping[str, Tensor], beginnings: Sequence[tuple[int, ...]], trust: float = 1.0
) -> list[tuple[int, ...]] | None:
    """Return the sentences with their last tokens; None if the last LayerNorm's gradient was not sent.

    Args:
        target: the model.
        gradient: what was sent.
        beginnings: the sentences without their last tokens.
        trust: how much the part of the LayerNorm's weight counts beside that of its bias: less under dropout, which
            changes what the LayerNorm gives and hence that part.
    """
    path = _last_norm(target)
    if f"{path}.weight" not in gradient or f"{path}.bias" not in gradient or not beginnings:
        return None
    norm: Any = target.model.get_submodule(path)
    table: Tensor = target.model.get_submodule(target.classifier).weight.detach().double()  # type: ignore[operator]
    rest = torch.stack([gradient[f"{path}.bias"], trust * gradient[f"{path}.weight"]]).double()  # [2, width]
    factors = []  # what a row of the table is multiplied by, of each sentence [2, width]
    for beginning in beginnings:
        share = 1.0 / (len(beginning) * len(beginnings))
        logits, fed = _forward(target, beginning)
        scale = torch.stack([torch.ones_like(fed), trust * (fed - norm.bias.double()) / norm.weight.double()])
        known = torch.softmax(logits, dim=-1)
        known[torch.arange(len(beginning) - 1), list(beginning[1:])] -= 1.0
        rest = rest - share * ((known @ table) * scale).sum(dim=1)
        factors.append(-share * scale[:, -1])
    return [(*b, last) for b, last in zip(beginnings, _fit(target, table, rest, torch.stack(factors)), strict=True)]


def _fit(target: Target, table: Tensor, rest: Tensor, factors: Tensor, sweeps: int = 20) -> list[int]:
    """Return the rows y of the table for which Σ_s factor_s ⊙ W_y is nearest to the rest, by coordinate descent."""
    chosen: list[int | None] = [None] * len(factors)
    costs = factors.square().sum(dim=1) @ table.square().T  # [sentences, vocabulary]
    order = factors.square().sum(dim=(1, 2)).argsort(descending=True).tolist()  # those first that say most
    for _ in range(sweeps):
        before = list(chosen)
        for number in order:
            factor = factors[number]
            old = chosen[number]
            if old is not None:
                rest = rest + factor * table[old]
            score = costs[number] - 2 * table @ (rest * factor).sum(dim=0)
            score[impossible_words(target)] += _not_an_ending(target)
            new = int(score.argmin())
            rest = rest - factor * table[new]
            chosen[number] = new
        if chosen == before:
            break
    return [int(token) for token in chosen if token is not None]


def _not_an_ending(target: Target) -> float:
    """Special tokens end no text, unless the tokenizer puts one there."""
    return 0.0 if target.special_tokens[1] else float("inf")


@torch.no_grad()
def _forward(target: Target, beginning: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return logits and what the output layer is fed, of one sentence, in float64."""
    fed: list[Tensor] = []
    handle = target.model.get_submodule(target.classifier).register_forward_pre_hook(lambda _, x: fed.append(x[0]))
    try:
        ids, mask = padded(target, [beginning])
        logits = target.family.logits(target.model, target.embed(ids), mask, target.task)
    finally:
        handle.remove()
    return logits[0].double(), fed[-1][0].double()


def _last_norm(target: Target) -> str:
    """Return the path of the LayerNorm that runs last."""
    seen: list[str] = []
    norms = {name: module for name, module in target.model.named_modules() if isinstance(module, nn.LayerNorm)}
    handles = [module.register_forward_hook(lambda *_, name=name: seen.append(name)) for name, module in norms.items()]
    try:
        _forward(target, [0, 0])
    finally:
        for handle in handles:
            handle.remove()
    return seen[-1]
