"""Find the sentences of a causal model by growing prefixes: a context depends on earlier tokens alone.

With rotary positions, a token repeated from the start has the same context every time, in every layer: how often it is
repeated shows only in the contexts of what follows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import Sentence
from gradleak.attacks.sieve.plain.attention_test import context_tolerance
from gradleak.attacks.sieve.plain.candidate_pairs import SCANNED
from gradleak.attacks.sieve.rotary_tokens import RotaryTokens
from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.exchange import Deadline
from gradleak.leakage.row_space import Subspace

TESTED = 4096
"""How many prefixes are tested at a time."""


def grow_prefixes(pairs: TokenPairs | RotaryTokens, contexts: Subspace, deadline: Deadline) -> list[Sentence]:
    """Extend all prefixes whose contexts lie in the row space, and return those that cannot be extended further."""
    rows, longest = _fitting(pairs, contexts, pairs.at(0)[:, None]), []
    while len(rows):
        grown = _extended(pairs, contexts, rows, deadline)
        parents = set(map(tuple, grown[:, :-1].tolist()))
        longest += [row for row in rows if tuple(row.tolist()) not in parents]
        rows = grown
    sentences = [tuple(pairs.tokens[row].tolist()) for row in longest]
    return _without_repeats(sentences) if isinstance(pairs, RotaryTokens) else sentences


def _without_repeats(sentences: list[Sentence]) -> list[Sentence]:
    """Return the sentences without those that are the beginning of another, but for a first token repeated more often.

    Broad attention mixes "the the cat" much as "the cat". Of a sentence that is one token repeated, one is returned.
    """
    cut = {sentence: _with_first_token_once(sentence) for sentence in sentences}
    plain = [sentence for sentence in sentences if cut[sentence] == sentence]
    others = [s for s in sentences if s not in plain and not any(p[: len(cut[s])] == cut[s] for p in plain)]
    kept = plain + [sentence for sentence in others if len(cut[sentence]) > 1]
    begun = {sentence[0] for sentence in kept}
    return kept + list(dict.fromkeys(cut[s] for s in others if len(cut[s]) == 1 and s[0] not in begun))


def _with_first_token_once(sentence: Sentence) -> Sentence:
    repeats = next((number for number, token in enumerate(sentence) if token != sentence[0]), len(sentence))
    return sentence[repeats - 1 :]


def _extended(pairs: TokenPairs | RotaryTokens, contexts: Subspace, rows: Tensor, deadline: Deadline) -> Tensor:
    """Return the prefixes extended by every pair of the next position whose contexts fit."""
    there = pairs.at(rows.shape[1])
    step = max(1, SCANNED // max(1, len(there) * (rows.shape[1] + 1)))
    grown = [rows.new_zeros(0, rows.shape[1] + 1)]
    for part in torch.split(rows, step):
        if deadline.passed:
            break
        longer = torch.cat([part.repeat_interleave(len(there), 0), there.repeat(len(part))[:, None]], dim=1)
        if isinstance(pairs, RotaryTokens):
            longer = pairs.distinguishable(longer)
        grown.append(_fitting(pairs, contexts, longer))
    return torch.cat(grown)


def _fitting(pairs: TokenPairs | RotaryTokens, contexts: Subspace, rows: Tensor) -> Tensor:
    """Return the prefixes whose last context lies in the row space."""
    tolerance = 10 * context_tolerance(contexts)
    fits = [contexts.outside(pairs.contexts(part)[:, -1]) < tolerance for part in torch.split(rows, TESTED)]
    return rows[torch.cat(fits)]
