"""ROUGE of two texts, by the package `rouge_score`."""

from __future__ import annotations

import functools
import re
from typing import Any

ROUGE_NAMES = ("rouge1", "rouge2", "rougeL")
# Words for unknown tokens, made of Unicode's noncharacters, which no text holds: they match nothing.
UNKNOWN_IN_TRUTH, UNKNOWN_IN_GUESS = "\ufdd0", "\ufdd1"
_UNKNOWN = re.compile(f"([{UNKNOWN_IN_TRUTH}{UNKNOWN_IN_GUESS}])")


class _RougeTokenizer:
    """Splits a text into words as `rouge_score` does, and keeps each unknown token as a separate word."""

    def __init__(self) -> None:
        from rouge_score.tokenizers import DefaultTokenizer

        self._plain = DefaultTokenizer(use_stemmer=False)

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        words: list[str] = []
        for part in _UNKNOWN.split(text):
            words += [part] if _UNKNOWN.fullmatch(part) else self._plain.tokenize(part)
        return words


@functools.cache
def _scorer() -> Any:  # noqa: ANN401 (rouge_score is not typed)
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE_NAMES), tokenizer=_RougeTokenizer())


def rouge(reconstruction: str, reference: str) -> tuple[float, float, float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L (F-measure, 0 to 100) of two texts.

    Equal texts score 100 on all three. `rouge_score` returns 0 where it has nothing to count: ROUGE-2
    of a single word, every ROUGE of an empty text or of one without Latin letters and digits. A text
    recovered in full would then look like one that stayed private.
    """
    if reconstruction == reference:
        return 100.0, 100.0, 100.0
    result = _scorer().score(reference, reconstruction)
    first, second, longest = (100.0 * float(result[name].fmeasure) for name in ROUGE_NAMES)
    return first, second, longest
