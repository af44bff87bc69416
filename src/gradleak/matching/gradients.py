"""Candidates' gradients themselves, many at once: for whoever learns from them instead of measuring a distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.matching.autograd import autograd_gradients
from gradleak.matching.candidates import Candidates
from gradleak.matching.factors import dense
from gradleak.matching.trace import trace
from gradleak.matching.trial import trial_of
from gradleak.targets import Target


def candidate_gradients(target: Target, candidates: Candidates, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the gradients `[victims, candidates, *shape]` of the named parameters, in the order of the names.

    One forward and backward pass gives every layer's inputs and output gradients; the layers' rules make each
    candidate's gradient of them. Parameters that no rule covers are left to autograd, candidate by candidate.
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


def _trusted_without_dropout(target: Target) -> frozenset[str]:
    """Return the parameters that rules cover; they are tried without dropout, under which no two passes agree."""
    training = target.model.training
    target.model.eval()
    trusted = trial_of(target).trusted
    target.model.train(training)
    return trusted
