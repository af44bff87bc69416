"""Fit a reading to what the attacker knows: order, batch size and lengths; what is missing is filled with its words."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.attacks.forest.reading import ForestReading
from gradleak.exchange import Knowledge
from gradleak.leakage.batch_shape import Sentence, arrange, resize
from gradleak.optimisation.slots import impossible_words
from gradleak.targets import Target


def fit_to_knowledge(
    target: Target, known: Knowledge, reading: ForestReading
) -> tuple[list[Sentence], list[int] | None]:
    """Return texts and labels in the known order and lengths; a proven reading that contradicts them is kept."""
    texts = list(reading.texts)
    labels = reading.labels
    if known.sequences is None or (reading.proof.verified and not _agrees(known, texts)):
        return texts, labels
    order = arrange(texts, labels, known)
    words = [token for text in texts for token in text] or [_any_word(target)]
    fitted: list[Sentence] = []
    for slot, number in enumerate(order):
        found = () if number is None else texts[number]
        length = known.lengths[slot] if known.lengths is not None else len(found) or target.min_length
        if len(found) != length:
            filler = tuple(words[place % len(words)] for place in range(length))
            found = resize(target, found, length, filler)
        fitted.append(found)
    if target.task == "causal-lm":
        return fitted, None
    if known.labels is not None:
        return fitted, list(known.labels)
    read = labels or []
    return fitted, [read[n] if n is not None and n < len(read) else 0 for n in order]


def _agrees(known: Knowledge, texts: Sequence[Sentence]) -> bool:
    if known.lengths is not None:
        return sorted(known.lengths) == sorted(map(len, texts))
    return known.sequences == len(texts)


def _any_word(target: Target) -> int:
    never = set(impossible_words(target).tolist())
    return next(token for token in range(len(target.word_embeddings)) if token not in never)
