"""Candidates' gradients by plain autograd, one candidate at a time: slow and always right.

`Matcher` falls back on this for parameters without a rule, `rule_check.py` checks the rules against it, and it is the
oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.matching.candidates import Candidates
from gradleak.targets import Target
from gradleak.targets.dropout import dropout_masks


def autograd_gradients(
    target: Target, candidates: Candidates, names: Sequence[str], *, weight: float | None = None
) -> dict[str, Tensor]:
    """Return each candidate's gradients `[victims, candidates, *shape]` of the named parameters.

    Args:
        target: the model.
        candidates: the guesses; the results are differentiable where their tensors require a gradient.
        names: parameters to differentiate by.
        weight: weight of each sequence's loss; 1 / sequences by default.
    """
    victims, count, sequences = candidates.shape
    factor = 1.0 if weight is None else weight * sequences
    parameters = target.parameters
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for victim in range(victims):
        for number in range(count):
            one = candidates.select(slice(victim, victim + 1), slice(number, number + 1)).flat()
            gradients = _gradients(target, one, {name: parameters[name] for name in names})
            for name, gradient in gradients.items():
                found[name].append(gradient * factor)
    return {name: torch.stack(rows).view(victims, count, *rows[0].shape) for name, rows in found.items()}


def _gradients(target: Target, batch: Candidates, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.enable_grad(), dropout_masks(target, batch.dropout):
        leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in parameters.items()}
        loss = target.loss_with(leaves, batch.inputs, batch.mask, batch.labels)
        gradients = torch.autograd.grad(
            loss, list(leaves.values()), create_graph=bool(batch.leaves), materialize_grads=True, allow_unused=True
        )
    return dict(zip(leaves, gradients, strict=True))
