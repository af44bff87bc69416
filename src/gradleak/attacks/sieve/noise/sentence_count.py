"""Count the sentences of a noisy update, of which too few singular values exceed the noise to count them.

The gradients of different sentences have much in common in the last layers and little in the first. In the mean over a
batch of B the part that each has for itself shrinks: its energy is that of one sentence divided by B. What one sentence
has, and what two share, is measured on sentences that a language model writes. This gives B to within a half; the
classifier's bias gradient shows the fraction of each class, which must be a multiple of 1 / B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from gradleak.exchange import Deadline
from gradleak.leakage.labels import predictions_for_random_texts
from gradleak.leakage.noise_floor import whiten
from gradleak.matching import Candidates, candidate_gradients
from gradleak.priors import Prior, SharedVocabulary
from gradleak.targets import Target

WRITTEN, LONGEST, SHORTEST = 16, 24, 3
"""Number of sentences that are written, and their greatest and least numbers of words."""

PLAINER = 1.45
"""Energy of a written sentence's gradient, relative to one that a person wrote."""

DEPTH = 3
"""How many layers, from the first on, are measured."""

MOST, FEW = 16, 4
"""The greatest number of sentences; and up to which at least two singular values of the last layer exceed the noise,
if there are several."""

SPREAD, ERROR = 0.4, 0.008
"""Standard deviations: of the logarithm of the estimate, as sentences differ, and of the fraction of a class."""

ABOVE_EDGE = 1.02
"""A singular value is signal if it exceeds the edge of the noise by this factor."""


def count_noisy_sentences(
    target: Target, gradient: Mapping[str, Tensor], prior: Prior | None, deadline: Deadline | None = None
) -> int | None:
    """Return the likeliest number of sentences of a noisy update; None if there is nothing, or no time, to compare it.

    Args:
        target: the model, a classifier.
        gradient: gradients by name.
        prior: writes sentences.
        deadline: when to give up.
    """
    names = [
        part.weight
        for layer in target.layers[:DEPTH]
        for part in (layer.attention_output, layer.feed_forward_in)
        if part.weight in gradient
    ]
    last, fractions = target.layers[-1].attention_output, class_fractions(target, gradient)
    if not isinstance(prior, SharedVocabulary) or not names or fractions is None or last.weight not in gradient:
        return None
    keys = [layer.key for layer in target.layers[:DEPTH] if layer.key.weight in gradient]
    if not keys:
        return None
    # the keys' gradients have least signal, and a thousand times as many entries as their biases
    noise = float(torch.cat([key.weight_in(gradient).flatten() for key in keys]).double().square().mean())
    seen = sum(float(gradient[name].double().square().sum()) - noise * gradient[name].numel() for name in names)
    until = deadline or Deadline()
    written = _written(target, prior, until)
    energies = None if written is None else _energies(target, written, fractions, names, until)
    if energies is None:
        return None
    own, shared = energies
    ratio = max(own - shared, 1e-30) / max(seen - shared, 1e-3 * (own - shared), 1e-30) / PLAINER
    several = shows_several(target, gradient)

    def misfit(count: int) -> float:
        parts = (fractions * count - (fractions * count).round()).abs() / (count * ERROR)
        by_rank = 1e3 if several and count == 1 else 9.0 if not several and 1 < count <= FEW else 0.0
        return (log(count / ratio) / SPREAD) ** 2 + float(parts.max()) ** 2 + by_rank

    return min(range(1, MOST + 1), key=misfit)


def shows_several(target: Target, gradient: Mapping[str, Tensor]) -> bool:
    """Return whether more than one singular value of the last layer, where a sentence has one, exceeds the noise."""
    last = target.layers[-1].attention_output
    return last.weight in gradient and bool(whiten(last.weight_in(gradient)).values[1] > ABOVE_EDGE)


def class_fractions(target: Target, gradient: Mapping[str, Tensor]) -> Tensor | None:
    """Return the fraction of each class in a batch, from the classifier's bias gradient; None if it was not sent."""
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is None:
        return None
    fractions = (predictions_for_random_texts(target).mean(dim=0) - bias.double()).clamp(min=0)
    return fractions / fractions.sum().clamp(min=1e-12)


@torch.no_grad()
def _written(target: Target, prior: SharedVocabulary, deadline: Deadline) -> list[list[int]] | None:
    """Return sentences that a language model writes; None if there is no time."""
    before, after = map(list, target.special_tokens)
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor([before] * WRITTEN)
    new, cache = rows, None
    for number in range(LONGEST):
        if deadline.passed:
            return None
        answer: Any = prior.model(
            input_ids=new.to(target.device), past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        logits, cache = answer.logits[:, -1].cpu(), answer.past_key_values
        ends = logits[:, after]
        logits[:, list(target.impossible_ids)] = -torch.inf
        logits[:, after] = ends if number >= SHORTEST else -torch.inf
        chances = logits.softmax(dim=-1)
        new = torch.multinomial(chances, 1, generator=generator)
        rows = torch.cat([rows, new], dim=1)
    return [_ended(row, after) for row in rows.tolist()]


def _ended(row: Sequence[int], after: Sequence[int]) -> list[int]:
    end = next((place for place, token in enumerate(row) if token in after), len(row))
    return [*row[:end], *after]


def _energies(
    target: Target, sentences: Sequence[Sequence[int]], fractions: Tensor, names: Sequence[str], deadline: Deadline
) -> tuple[float, float] | None:
    """Return the mean squared norm of sentences' gradients, and the mean inner product of two, with these classes.

    None if there is no time.
    """
    classes = [label for label, fraction in enumerate(fractions.tolist()) if fraction > ERROR] or [0]
    own = shared = 0.0
    sums: dict[str, Tensor] = {}
    for sentence in sentences:
        if deadline.passed:
            return None
        ids = torch.tensor(sentence, device=target.device)[None, None, None].expand(1, len(classes), 1, -1)
        labels = torch.tensor(classes, device=target.device)[None, :, None]
        candidates = Candidates(ids, torch.ones_like(ids, dtype=torch.bool), labels)
        weights = fractions[classes].to(target.word_embeddings)
        for name, each in candidate_gradients(target, candidates, names).items():
            parts = each[0].flatten(1)
            own += float(weights @ parts.square().sum(dim=1)) / len(sentences)
            mean = weights @ parts
            sums[name] = sums[name] + mean if name in sums else mean
            shared -= float(mean.square().sum())
    shared += sum(float(total.square().sum()) for total in sums.values())
    return own, shared / (len(sentences) * (len(sentences) - 1))
