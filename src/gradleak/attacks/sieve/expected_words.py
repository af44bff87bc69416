"""The words that a language model expects at each position of a sentence: its proposals for what an update hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.priors import Prior, SharedVocabulary
from gradleak.targets import Target

FOLLOWING = 5
"""How many words that the prior expects are tried at each position."""


ExpectedWords = Callable[[Sequence[int]], list[list[int]]]
"""Takes words; returns those expected most in place of the first, of the second, and so on, and after the last."""

Continuations = Callable[[tuple[int, ...]], Tensor]
"""Returns the log-probability of every token after the first n words of a sentence `[n, vocabulary]`, n from 0 on."""


def expected_words(observed: ObservedUpdate, prior: Prior | None) -> ExpectedWords:
    """Return a function that gives the words expected most at each position of a sentence, and after its last.

    Args:
        observed: the update.
        prior: the language model; no words are expected without one, or with one of another vocabulary.
    """
    words, after = observed.words, continuations(observed.target, prior)

    def expected(tokens: Sequence[int]) -> list[list[int]]:
        if after is None:
            return [[] for _ in range(len(tokens) + 1)]
        chances = after(tuple(tokens))
        possible = torch.full_like(chances, -inf)
        possible[:, words] = chances[:, words]
        most: list[list[int]] = possible.topk(min(FOLLOWING, len(words)), dim=1).indices.tolist()
        return most

    return expected


def continuations(target: Target, prior: Prior | None) -> Continuations | None:
    """Return what a language model expects after each word of a sentence.

    Args:
        target: the model.
        prior: the language model; None is returned without one, or with one of another vocabulary.
    """
    if not isinstance(prior, SharedVocabulary):
        return None
    model, before = prior.model, list(target.special_tokens[0])

    @torch.no_grad()
    def after(words: tuple[int, ...]) -> Tensor:
        ids = torch.tensor([[*before, *words]], device=target.device)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 :]
        return logits.log_softmax(dim=-1)

    return after
