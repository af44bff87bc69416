"""Test whole sentences: their first-layer contexts must lie in the row space of the attention output map.

That map's inputs are one context per token of each sentence, a mixture of values that depends on the whole sentence
and on no other. Its gradient's row space is the span of all contexts of the batch, so each sentence can be tested by
itself: correct ones leave 1e-7 of their contexts outside.
"""

from __future__ import annotations

from torch import Tensor

from gradleak.attacks.sieve.token_pairs import TokenPairs
from gradleak.leakage.row_space import Subspace

CORRECT, MOST_OUTSIDE = 1e-4, 0.2
"""A sentence is correct if less than the first fraction of each of its contexts lies outside; wrong ones leave 1e-2.
For a rounded update the tolerance grows with the error of the row space, up to the second; subtraction has to confirm
it."""


def context_tolerance(contexts: Subspace) -> float:
    """Return the fraction of a context that a correct sentence may leave outside, given the rounding of the space."""
    return max(CORRECT, min(3 * contexts.error, MOST_OUTSIDE))


def outside_contexts(pairs: TokenPairs, sentences: Tensor, space: Subspace) -> Tensor:
    """Return the largest fraction of a context that lies outside the row space `[sentences]`."""
    return space.outside(pairs.contexts(sentences)).amax(dim=1)
