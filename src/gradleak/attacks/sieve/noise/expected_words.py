"""The words that a language model expects at each position of a sentence: its proposals for what noise hides."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch

from gradleak.attacks.sieve.noise.drafts import Draft
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.priors import Prior, SharedVocabulary

FOLLOWING = 5
"""How many words that the prior expects are tried at each position."""


def expected_words(observed: ObservedUpdate, prior: Prior | None) -> Callable[[Draft], list[list[int]]]:
    """Return a function that gives the words expected most at each position of a draft, and after its last.

    Args:
        observed: the update.
        prior: the language model; no words are expected without one, or with one of another vocabulary.
    """
    target, words = observed.target, observed.words
    before = list(target.special_tokens[0])

    def nothing(draft: Draft) -> list[list[int]]:
        return [[] for _ in range(len(draft.tokens) + 1)]

    if not isinstance(prior, SharedVocabulary):
        return nothing
    model = prior.model

    def expected(draft: Draft) -> list[list[int]]:
        ids = torch.tensor([[*before, *draft.tokens]], device=target.device)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 :]
        possible = torch.full_like(logits, -inf)
        possible[:, words] = logits[:, words]
        most: list[list[int]] = possible.topk(min(FOLLOWING, len(words)), dim=1).indices.tolist()
        return most

    return expected
