"""The last token of each sentence of a language model, which is input to no map and leaves no row.

It is only predicted. The gradient of the last norm is a sum over all predictions of (p − y) W, for its scale times the
normalised input. Everything in it follows from the sentences except the rows W_y of their last tokens, which are found
one sentence at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.attacks.sieve.observed import Sentence
from gradleak.leakage.recompute import classifier_pass
from gradleak.optimisation.slots import impossible_words
from gradleak.targets import Target
from gradleak.targets.hooks import captured_calls
from gradleak.targets.norms import RmsNorm


def append_last_tokens(
    target: Target, gradient: Mapping[str, Tensor], beginnings: Sequence[Sentence], trust: float = 1.0
) -> list[Sentence] | None:
    """Return the sentences with their last tokens; None if the last norm's gradient was not sent.

    Args:
        target: the model.
        gradient: gradients by name.
        beginnings: the sentences without their last tokens.
        trust: weight of the norm's weight gradient relative to its bias gradient; less than 1 under dropout, which
            changes the norm's output and with it the weight gradient. An RMSNorm has no bias.
    """
    path = _last_norm(target)
    sent = [f"{path}.{part}" for part in ("bias", "weight") if f"{path}.{part}" in target.parameters]
    if not beginnings or not set(sent) <= gradient.keys():
        return None
    norm: Any = target.model.get_submodule(path)
    table: Tensor = target.model.get_submodule(target.classifier).weight.detach().double()  # type: ignore[operator]
    weights = {f"{path}.bias": 1.0, f"{path}.weight": trust}
    residual = torch.stack(
        [weights[name] * gradient[name] for name in sent]
    ).double()  # [2, width]; RMSNorm: [1, width]
    slopes = []  # by sentence, the derivatives of the last logits [vocabulary]: 1, but for soft caps
    factors = []  # by sentence, the factor of the last token's row of the table, of the residual's shape
    for beginning in beginnings:
        share = 1.0 / (len(beginning) * len(beginnings))
        logits, inputs = _forward(target, beginning)
        scale = _derivatives(norm, inputs, trust)
        slope = target.family.logit_slopes(target.config, logits)
        known = torch.softmax(logits, dim=-1)
        known[torch.arange(len(beginning) - 1), list(beginning[1:])] -= 1.0
        residual = residual - share * (((known * slope) @ table) * scale).sum(dim=1)
        slopes.append(slope[-1])
        factors.append(-share * scale[:, -1])
    last_tokens = _fit(target, table, residual, torch.stack(factors), torch.stack(slopes))
    return [(*beginning, last) for beginning, last in zip(beginnings, last_tokens, strict=True)]


def _derivatives(norm: Any, outputs: Tensor, trust: float) -> Tensor:  # noqa: ANN401
    """Return the factors of a norm's backprops in the gradients of its bias and scale `[2 or 1, tokens, width]`.

    Args:
        norm: a LayerNorm, or an RMSNorm, which has no bias.
        outputs: what it returned `[tokens, width]`.
        trust: weight of the scale's gradient.
    """
    if isinstance(norm, RmsNorm):
        return trust * (outputs / (norm.weight.double() + norm.offset))[None]
    normalised = (outputs - norm.bias.double()) / norm.weight.double()
    return torch.stack([torch.ones_like(outputs), trust * normalised])


def _fit(
    target: Target, table: Tensor, residual: Tensor, factors: Tensor, slopes: Tensor, sweeps: int = 20
) -> list[int]:
    """Return the rows y of the table that minimise ‖residual − Σ_s factor_s ⊙ slope_sy W_y‖, by coordinate descent."""
    chosen: list[int | None] = [None] * len(factors)
    costs = slopes.square() * (factors.square().sum(dim=1) @ table.square().T)  # [sentences, vocabulary]
    order = factors.square().sum(dim=(1, 2)).argsort(descending=True).tolist()  # the largest factors first
    for _ in range(sweeps):
        before = list(chosen)
        for number in order:
            factor = factors[number]
            old = chosen[number]
            if old is not None:
                residual = residual + factor * slopes[number, old] * table[old]
            score = costs[number] - 2 * slopes[number] * (table @ (residual * factor).sum(dim=0))
            score[impossible_words(target)] += _special_penalty(target)
            new = int(score.argmin())
            residual = residual - factor * slopes[number, new] * table[new]
            chosen[number] = new
        if chosen == before:
            break
    return [int(token) for token in chosen if token is not None]


def _special_penalty(target: Target) -> float:
    """Return the penalty of a special token as the last: infinite, unless the tokenizer ends texts with one."""
    return 0.0 if target.special_tokens[1] else float("inf")


def _forward(target: Target, beginning: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return logits and inputs of the output layer for one sentence, in float64."""
    logits, inputs = classifier_pass(target, [beginning])
    return logits[0].double(), inputs[0].double()


def _last_norm(target: Target) -> str:
    """Return the path of the norm that runs last."""
    norms = [path for path, module in target.model.named_modules() if isinstance(module, (nn.LayerNorm, RmsNorm))]
    with captured_calls(target, norms) as calls:
        _forward(target, [0, 0])
    return calls[-1].path
