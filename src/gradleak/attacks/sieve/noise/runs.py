"""Runs of words moved within a sentence: its parts are often right while their order is not.

Moved word by word, a run leaves its context long before it arrives, and none of these steps helps. There are thousands
of ways to move whole runs. A language model, which needs to read the sentence once for all of them, says how well
words follow each other where they would meet, and only the best ways are compared with the update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradleak.attacks.sieve.expected_words import Continuations
from gradleak.attacks.sieve.noise.drafts import Draft

COMPARED = 48
"""How many ways to move a run are compared with the update: those that read best."""

Rearrange = Callable[[Draft], Sequence[Draft]]
"""Returns drafts with the same words in another order."""


def runs_moved(draft: Draft, continuations: Continuations | None, end: int) -> list[Draft]:
    """Return a draft with two or more adjacent words moved, in the ways that read best; none without a language model.

    To move a run is to exchange it with the words that it passes. Single words, which a climb moves one by one, are
    left out.

    Args:
        draft: the draft.
        continuations: what a language model expects after each word.
        end: the token that follows the last word.
    """
    count = len(draft.tokens)
    if continuations is None or count < 4:
        return []
    chances = continuations(draft.tokens)[:, [*draft.tokens, end]].cpu()  # [n + 1, n + 1]: word j after the first i
    kept = chances.diagonal()
    cuts = torch.combinations(torch.arange(count + 1), 3)
    first, middle, last = cuts[(cuts[:, 1] - cuts[:, 0] > 1) & (cuts[:, 2] - cuts[:, 1] > 1)].T
    gains = chances[first, middle] + chances[last, first] + chances[middle, last]
    gains = gains - kept[first] - kept[middle] - kept[last]
    best = gains.topk(min(COMPARED, len(gains))).indices
    return [_exchanged(draft, *map(int, cut)) for cut in zip(first[best], middle[best], last[best], strict=True)]


def _exchanged(draft: Draft, first: int, middle: int, last: int) -> Draft:
    """Return a draft with the words from first to middle and those from middle to last exchanged."""
    order = [*range(first), *range(middle, last), *range(first, middle), *range(last, len(draft.tokens))]
    return Draft(tuple(draft.tokens[n] for n in order), tuple(draft.names[n] for n in order))
