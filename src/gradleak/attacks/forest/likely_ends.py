"""Last tokens that the coefficients of prefixes do not show.

A token of which the target is sure has next to no gradient, and the prefix before it vanishes below rounding: the text
seems to end a token earlier. In the first round no text shows its last token (`sites.py`). In both cases the target
itself proposes tokens, and the whole gradient decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradleak.attacks.forest.prefix_inputs import Prefix
from gradleak.exchange import Deadline
from gradleak.leakage.proof import WHOLE
from gradleak.targets import Target

SURE = 0.5
"""A token that left no trace is one that the target expects with at least this probability."""

PROPOSED = 64
"""Tokens that may end a text of the first round."""


def with_likely_ends(
    target: Target,
    texts: Sequence[Prefix],
    distance: Callable[[list[Prefix]], float],
    deadline: Deadline,
    *,
    ends_read: bool,
) -> list[Prefix]:
    """Return the texts, those extended by a token that are then nearer to the update.

    Args:
        target: a causal language model.
        texts: texts that may lack their last token.
        distance: of a batch of texts from the update.
        deadline: when to stop.
        ends_read: whether the coefficients showed last tokens; if not, every text lacks its own.
    """
    best, least = list(texts), distance(list(texts))
    for place in range(len(best)):
        for token in _expected(target, best[place], ends_read=ends_read):
            if deadline.passed or least < WHOLE:
                return best
            tried = [*best[:place], (*texts[place], token), *best[place + 1 :]]
            found = distance(tried)
            if found < least:
                best, least = tried, found
    return best


@torch.no_grad()
def _expected(target: Target, text: Prefix, *, ends_read: bool) -> list[int]:
    """Return the tokens that the target expects after a text, the likeliest first."""
    if not text or len(text) >= target.max_length:
        return []
    ids = torch.tensor([text], device=target.device)
    chances = torch.softmax(target.logits(target.embed(ids), torch.ones_like(ids, dtype=torch.bool))[0, -1], dim=-1)
    likely = chances.topk(min(PROPOSED, len(chances)))
    return [
        token
        for token, chance in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
        if not ends_read or chance >= SURE
    ]
