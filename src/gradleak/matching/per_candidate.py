"""Candidates' gradients themselves, many at once.

Inverters are trained on them; EDR reads single rows of the word table's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.matching.autograd import autograd_gradients
from gradleak.matching.candidates import Candidates
from gradleak.matching.factors import Factor, LookupRows, combine, dense
from gradleak.matching.rule_check import check_rules
from gradleak.matching.trace import trace
from gradleak.targets import Target


def candidate_gradients(target: Target, candidates: Candidates, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the gradients `[victims, candidates, *shape]` of the named parameters, in the order of the names.

    One forward and backward pass gives every layer's activations and backprops, from which the layers' rules compute
    each candidate's gradient. Parameters without a rule are computed by autograd, candidate by candidate.
    """
    trusted = _trusted_without_dropout(target)
    slow = [name for name in names if name not in trusted]
    quick = [name for name in names if name in trusted]
    found: dict[str, Tensor] = {}
    if quick:
        with torch.no_grad():
            factors = trace(target, candidates, quick, weight=1.0 / candidates.shape[2])
            found = {name: dense(parts) for name, parts in factors.items()}
    if slow:
        found |= autograd_gradients(target, candidates, slow)
    return {name: found[name] for name in names}


def row_gradients(target: Target, candidates: Candidates, name: str, rows: Tensor) -> Tensor:
    """Return selected rows of a table's gradient `[victims, candidates, rows, width]`, without building the table.

    Args:
        target: the model.
        candidates: the guesses.
        name: the table's parameter name.
        rows: row numbers of each victim `[victims, rows]`.
    """
    factors: Sequence[Factor] = ()
    if name in _trusted_without_dropout(target):
        with torch.no_grad():
            factors = trace(target, candidates, [name], weight=1.0 / candidates.shape[2])[name]
    if not factors or not all(isinstance(factor, LookupRows) for factor in factors):
        table = candidate_gradients(target, candidates, [name])[name]
        return table.gather(2, rows[:, None, :, None].expand(*table.shape[:2], -1, table.shape[3]))
    (looked_up,) = combine(factors)
    assert isinstance(looked_up, LookupRows)
    same = rows[:, None, :, None] == looked_up.index[:, :, None]  # [victims, candidates, rows, terms]
    return torch.matmul(same.to(looked_up.columns.dtype), looked_up.columns)


def _trusted_without_dropout(target: Target) -> frozenset[str]:
    """Return the parameters that rules cover, checked in evaluation mode: under dropout no two passes agree."""
    training = target.model.training
    target.model.eval()
    trusted = check_rules(target).trusted
    target.model.train(training)
    return trusted
