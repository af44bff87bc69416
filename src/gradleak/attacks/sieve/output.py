"""Fit a reading to what the attacker knows: order, batch size and lengths; guess what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gradleak.attacks.sieve.observed import ObservedUpdate, Sentence
from gradleak.attacks.sieve.reading import Reading
from gradleak.exchange import Knowledge
from gradleak.leakage.batch_shape import arrange, resize
from gradleak.optimisation.slots import impossible_words


def fit_to_knowledge(observed: ObservedUpdate, known: Knowledge, reading: Reading) -> Reading:
    """Put texts in the known order and guess missing ones; a proven reading that contradicts what is known is kept."""
    target = observed.target
    copies = _copies_in_batch(known.sequences, reading.proof.counts or reading.copies) or reading.copies
    places = [number for number, count in enumerate(copies) for _ in range(count)]
    occurring = [reading.sentences[number] for number in places]
    if reading.proof.verified and not _agrees(known, occurring):
        return replace(reading, notes=[*reading.notes, "the lengths or batch size told do not fit the update"])
    read = reading.labels or []
    read = [read[number] if number < len(read) else 0 for number in places]
    order = arrange(occurring, read if reading.labels else None, known)
    sentences: list[Sentence] = []
    for slot, number in enumerate(order):
        found = () if number is None else occurring[number]
        length = known.lengths[slot] if known.lengths is not None else len(found) or target.min_length
        if len(found) != length:
            found = resize(target, found, length, guess_words(observed, length, slot))
        sentences.append(found)
    labels = None
    proof = reading.proof
    if target.task == "classification":
        labels = [0 if number is None else read[number] for number in order]
        if known.labels is not None and labels != list(known.labels):
            labels, proof = list(known.labels), replace(proof, labels_verified=False)
    return replace(reading, sentences=sentences, copies=[], labels=labels, proof=proof).distinct()


def _agrees(known: Knowledge, sentences: Sequence[Sentence]) -> bool:
    if known.lengths is not None:
        return sorted(known.lengths) == sorted(map(len, sentences))
    return known.sequences in (None, len(sentences))


def _copies_in_batch(size: int | None, counts: Sequence[int]) -> list[int]:
    """Return how often each text occurs in a batch of a known size; empty if no size is known or it does not fit.

    Without dropout a batch and the same batch twice have one gradient; several passes over a batch show its texts
    several times.
    """
    total = sum(counts)
    if size and total and size % total == 0:
        return [count * (size // total) for count in counts]
    if size and total % size == 0 and all(count % (total // size) == 0 for count in counts):
        return [count // (total // size) for count in counts]
    return []


def guess_words(observed: ObservedUpdate, length: int, choice: int) -> Sentence:
    """Return a sentence of the words that lie in the row space best, position by position: a guess, not a reading.

    Args:
        observed: the update.
        length: tokens of the sentence, special tokens included.
        choice: 0 for the best words, 1 for the second best, and so on.
    """
    before, after = observed.target.special_tokens
    words = observed.words[~torch.isin(observed.words, impossible_words(observed.target))]
    places = torch.arange(len(before), length - len(after), device=words.device)
    captured = observed.inputs.captured_energy(observed.space.basis, words, places)
    rank = min(choice, len(words) - 1)
    inner = words[captured.topk(rank + 1, dim=0).indices[rank]]
    return (*before, *inner.tolist(), *after)
