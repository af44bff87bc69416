"""Words proposed by descent: near the embeddings of a sentence's own words, and in its gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradleak.attacks.sieve.defended.likely_edits import similar_words
from gradleak.attacks.sieve.noise.drafts import START, Change, Draft
from gradleak.optimisation.descent import Descent
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.slots import Slots
from gradleak.targets import Target

FROM_SENTENCE = Descent(steps=20, lr=0.01, linear=True, mask_speed=0)
FROM_GAP = Descent(steps=8, lr=0.02, linear=True, mask_speed=0)
"""Descents of embeddings; dropout masks that the update shows stay as they are."""

INSERTED = 4
"""How many words near an embedding that descended in a gap are tried there."""

DescendedWords = Callable[[Guess, Descent], Tensor]
"""Descends, and returns the words nearest to the embeddings at each free position `[positions, words]`."""


def replacements(target: Target, draft: Draft, label: int, descended: DescendedWords) -> list[Change]:
    """Return the replacements of a draft's words by those near their descended embeddings."""
    sentence = torch.tensor(_framed(target, draft.tokens), device=target.device)
    slots = Slots.of(target, [[[len(sentence)]]])
    near = descended(_guess(slots, target.embed(sentence)[None, None, None].clone(), label), FROM_SENTENCE).tolist()
    words = zip(draft.names, draft.tokens, near, strict=True)
    return [Change("replace", name, token) for name, there, row in words for token in row if token != there]


def alike(target: Target, words: Tensor, draft: Draft) -> list[Change]:
    """Return the replacements of a draft's words by those with the most similar embeddings, such as other forms.

    Args:
        target: the model.
        words: the ids that may occur inside a text.
        draft: the draft.
    """
    near = similar_words(target, words, torch.tensor(draft.tokens, device=words.device, dtype=torch.long)).tolist()
    pairs = zip(draft.names, draft.tokens, near, strict=True)
    return [Change("replace", name, token) for name, there, row in pairs for token in row if token != there]


def insertions(target: Target, words: Tensor, draft: Draft, label: int, descended: DescendedWords) -> list[Change]:
    """Return the insertions of words near an embedding that descended from the mean of all, in every gap of a draft.

    A word that is missing altogether is neither near another one's embedding nor expected by a prior.

    Args:
        target: the model.
        words: the ids that may occur inside a text.
        draft: the draft.
        label: its class.
        descended: descends embeddings.
    """
    first, names = len(target.special_tokens[0]), (START, *draft.names)
    slots = Slots.of(target, [[[len(_framed(target, draft.tokens)) + 1]] * len(names)])
    for gap in range(len(names)):
        tokens = _framed(target, [*draft.tokens[:gap], int(words[0]), *draft.tokens[gap:]])
        slots.ids[0, gap, 0] = torch.tensor(tokens, device=target.device)
        slots.free[0, gap, 0] = torch.arange(len(tokens), device=target.device) == first + gap
    mean = target.word_embeddings[words].mean(dim=0)
    embeddings = torch.where(slots.free[..., None], mean, target.embed(slots.ids))
    near = descended(_guess(slots, embeddings, label), FROM_GAP)[:, :INSERTED].tolist()
    return [Change("insert", name, token) for name, row in zip(names, near, strict=True) for token in row]


def _guess(slots: Slots, embeddings: Tensor, label: int) -> Guess:
    labels = torch.full_like(slots.ids[..., 0], label)
    return Guess(slots, embeddings, labels, torch.full_like(labels[..., 0], torch.inf, dtype=torch.float64))


def _framed(target: Target, tokens: Sequence[int]) -> list[int]:
    before, after = target.special_tokens
    return [*before, *tokens, *after]
