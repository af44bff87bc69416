"""Find the sentences of a causal model by growing prefixes: a context depends on earlier tokens alone."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import Sentence
from gradleak.attacks.sieve.plain.attention_test import context_tolerance
from gradleak.attacks.sieve.plain.candidate_pairs import SCANNED
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.exchange import Deadline
from gradleak.leakage.row_space import Subspace

TESTED = 4096
"""How many prefixes are tested at a time."""


def grow_prefixes(pairs: TokenPairs, contexts: Subspace, deadline: Deadline) -> list[Sentence]:
    """Extend all prefixes whose contexts lie in the row space, and return those that cannot be extended further."""
    rows, longest = _fitting(pairs, contexts, pairs.at(0)[:, None]), []
    while len(rows):
        grown = _extended(pairs, contexts, rows, deadline)
        parents = set(map(tuple, grown[:, :-1].tolist()))
        longest += [row for row in rows if tuple(row.tolist()) not in parents]
        rows = grown
    return [tuple(pairs.tokens[row].tolist()) for row in longest]


def _extended(pairs: TokenPairs, contexts: Subspace, rows: Tensor, deadline: Deadline) -> Tensor:
    """Return the prefixes extended by every pair of the next position whose contexts fit."""
    there = pairs.at(rows.shape[1])
    step = max(1, SCANNED // max(1, len(there) * (rows.shape[1] + 1)))
    grown = [rows.new_zeros(0, rows.shape[1] + 1)]
    for part in torch.split(rows, step):
        if deadline.passed:
            break
        longer = torch.cat([part.repeat_interleave(len(there), 0), there.repeat(len(part))[:, None]], dim=1)
        grown.append(_fitting(pairs, contexts, longer))
    return torch.cat(grown)


def _fitting(pairs: TokenPairs, contexts: Subspace, rows: Tensor) -> Tensor:
    """Return the prefixes whose last context lies in the row space."""
    tolerance = 10 * context_tolerance(contexts)
    fits = [contexts.outside(pairs.contexts(part)[:, -1]) < tolerance for part in torch.split(rows, TESTED)]
    return rows[torch.cat(fits)]
