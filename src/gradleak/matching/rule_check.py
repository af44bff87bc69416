"""Check of the gradient rules on a target: where they equal autograd, and which computation can be skipped.

`Matcher` and `per_candidate.py` use the result; it is computed once for each target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gradleak.matching.autograd import autograd_gradients
from gradleak.matching.candidates import Candidates
from gradleak.matching.factors import Factor, LowRank, dense
from gradleak.matching.trace import trace
from gradleak.targets import Projection, Target

CHECK_TOKENS = 5  # length of the random sequences that are compared


@dataclass(frozen=True)
class RuleCheck:
    """Where the rules can be trusted with a target.

    Attributes:
        trusted: parameters for which the rules equal autograd. A model may use a layer in a way that its rule cannot
            see (its weight read by another module, sequences not in the first dimension); autograd computes those.
        linear: trusted parameters whose gradient is a sum of outer products.
        cls_token_only: paths of layers in the last block of which only the first token's output reaches the loss, as in
            classifiers that read the first token; other tokens need not be computed.
    """

    trusted: frozenset[str]
    linear: frozenset[str]
    cls_token_only: tuple[str, ...] = ()


_CHECKS: WeakKeyDictionary[Target, RuleCheck] = WeakKeyDictionary()


def check_rules(target: Target) -> RuleCheck:
    """Compare the rules with autograd on random sequences, once for each target."""
    if target not in _CHECKS:
        _CHECKS[target] = _check(target)
    return _CHECKS[target]


def _check(target: Target) -> RuleCheck:
    candidates, names = _random_candidates(target), list(target.parameters)
    expected = autograd_gradients(target, candidates, names)
    factors = trace(target, candidates, names, weight=0.5)
    trusted = _equal_to_autograd(factors, expected)
    linear = frozenset(name for name in trusted if any(isinstance(part, LowRank) for part in factors[name]))
    cls_token_only = _read_at_first_token(target, factors, candidates.mask.shape[3])
    try:
        shorter = trace(target, candidates, names, weight=0.5, cls_token_only=cls_token_only)
    except RuntimeError:  # a custom model whose shapes do not allow a single token
        return RuleCheck(trusted, linear)
    return RuleCheck(trusted, linear, cls_token_only if _equal_to_autograd(shorter, expected) == trusted else ())


def _equal_to_autograd(factors: Mapping[str, Sequence[Factor]], expected: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the parameters whose gradients equal autograd's."""
    largest = max(gradient.norm() for gradient in expected.values())
    return frozenset(
        name
        for name, parts in factors.items()
        if (dense(parts) - expected[name]).norm() <= 1e-3 * expected[name].norm() + 1e-5 * largest
    )


def _read_at_first_token(target: Target, factors: Mapping[str, Sequence[Factor]], tokens: int) -> tuple[str, ...]:
    """Return the layers after the last attention whose output gradients are zero at all tokens but the first."""
    last = [layer for block in target.layers[-1:] for layer in (block.attention_output, block.feed_forward_in)]
    return tuple(layer.module for layer in last if _is_zero_after_first(layer, factors.get(layer.weight, ()), tokens))


def _is_zero_after_first(layer: Projection, factors: Sequence[Factor], tokens: int) -> bool:
    outer = [factor for factor in factors if isinstance(factor, LowRank)]
    if len(outer) != 1 or len(factors) != 1:
        return False
    gradients = outer[0].columns if layer.transposed else outer[0].rows
    by_sequence = gradients.reshape(-1, tokens, gradients.shape[-1])
    return bool(by_sequence[:, 0].any() and not by_sequence[:, 1:].any())


def _random_candidates(target: Target) -> Candidates:
    generator = torch.Generator().manual_seed(0)
    tokens = min(CHECK_TOKENS, target.max_length)
    ids = torch.randint(len(target.word_embeddings), (1, 2, 2, tokens), generator=generator).to(target.device)
    labels = ids if target.task == "causal-lm" else torch.randint(target.num_labels, (1, 2, 2), generator=generator)
    return Candidates(ids, torch.ones_like(ids, dtype=torch.bool), labels.to(target.device))
