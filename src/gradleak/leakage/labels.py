"""The labels of the private texts: from the classifier's gradient, or by comparison of gradients.

| what is known | function |
| --- | --- |
| nothing, one sequence | `single_label` |
| nothing, a batch | `class_counts` |
| what the attacker was told, else one of the two above | `known_labels` |
| the texts | `labels_from_classifier` |
| the texts and each one's part of the first value map's gradient (dropout) | `labels_from_parts` |
| the texts, and a distance to the update | `nearest_labels` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import torch
from torch import Tensor

from gradleak.exchange import Knowledge, Victim
from gradleak.leakage.perturbation import noise_level
from gradleak.leakage.recompute import batch_gradient, classifier_pass, random_texts
from gradleak.targets import Target

NOISE_TEXTS = (32, 10)
"""Number and length of the random texts that show what a classifier predicts regardless of its input."""

CLIPPING = ("clip", "dpsgd")
"""Defenses that scale a gradient, which nothing in the update reveals."""


def told_clipped(known: Knowledge) -> bool:
    """Return whether the known defenses include gradient clipping."""
    return any(defense.startswith(CLIPPING) for defense in known.defenses or ())


def single_label(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the class of a batch of one: the only negative entry of the classifier's bias gradient.

    The gradient of the bias is p − y, probability minus truth (iDLG, Zhao et al. 2020).
    """
    bias = gradient.get(target.classifier_bias)
    if bias is None or target.task != "classification" or int((bias < 0).sum()) != 1:
        return None
    return int(bias.argmin())


def class_counts(target: Target, gradient: Mapping[str, Tensor], sequences: int) -> list[int] | None:
    """Return how many sequences of a batch have each class, from the classifier's bias gradient.

    It is the mean of p − y over the batch: the predicted class frequencies minus the true ones. A model that has yet
    to be fine-tuned predicts much the same for any text, so p is estimated from random texts; if predictions differ
    between texts, the counts are not known (None).

    Args:
        target: the model, a classifier.
        gradient: gradients by name; not clipped, which would pull all frequencies towards the predicted ones.
        sequences: the batch size.
    """
    bias = gradient.get(target.classifier_bias)
    if bias is None or bool((bias == 0).any()):  # pruned or masked
        return None
    predicted = predictions_for_random_texts(target)
    counts = sequences * (predicted.mean(dim=0) - bias.to(predicted))
    # standard deviation of the counts: each sequence's p differs from the mean, and noise adds to the bias
    noise = sequences * (noise_level(target, gradient) or 0.0)
    spread = (sequences * predicted.var(dim=0).max() + noise**2).sqrt()
    whole = counts.round()
    # in a large batch one wrong label is better than no labels
    most = max(0.5, sequences / 8)
    certain = 3 * float(spread) < most and 2 * float((counts - whole).abs().max()) < most
    found = [int(count) for count in whole.tolist()]
    return found if certain and sum(found) == sequences and min(found) >= 0 else None


@torch.no_grad()
def predictions_for_random_texts(target: Target) -> Tensor:
    """Return the probabilities `[texts, classes]` that a classifier gives to random words."""
    ids = random_texts(target, *NOISE_TEXTS)
    logits = target.family.logits(target.model, target.embed(ids), torch.ones_like(ids, dtype=torch.bool), target.task)
    return logits.double().softmax(dim=-1)


def known_labels(target: Target, victim: Victim, *, any_order: bool = False) -> tuple[Sequence[int] | None, str | None]:
    """Return the known or inferred labels, with a note if inferred; None if they must be searched.

    Args:
        target: the model.
        victim: the update under attack.
        any_order: whether the batch's sequences may be in any order. Class counts are enough then, unless different
            lengths distinguish the sequences.
    """
    known = victim.knowledge
    if target.task != "classification":
        return None, None
    if known.labels is not None:
        return known.labels, None
    if (known.sequences or 1) == 1:
        label = single_label(target, victim.gradient)
        if label is not None:
            return [label], f"label {label}: read from the classifier's bias gradient"
    elif any_order and not told_clipped(known):
        counts = class_counts(target, victim.gradient, known.sequences or 1) or []
        labels = [label for label, count in enumerate(counts) for _ in range(count)]
        if labels and (len(set(labels)) == 1 or len(set(known.lengths or ())) <= 1):
            return labels, f"labels {', '.join(map(str, labels))}: read from the classifier's bias gradient"
    return None, "labels searched together with the embeddings"


def labels_from_classifier(
    target: Target, gradient: Mapping[str, Tensor], sequences: Sequence[Sequence[int]]
) -> list[int] | None:
    """Return the class of each known sequence from the classifier's gradient; None if it was not sent.

    The gradient is Σ_s (p_s − y_s) h_sᵀ / B. The classifier's inputs h_s and the probabilities p_s follow from the
    sequences, so y = p − B · dW H⁺: exact without dropout, close enough with it.
    """
    observed = gradient.get(target.classifier_weight)
    if target.task != "classification" or observed is None or not sequences:
        return None
    logits, inputs = classifier_pass(target, sequences)
    rows, weights = inputs.double(), observed.double()
    bias = gradient.get(target.classifier_bias)
    if bias is not None:  # the weight of a further input that is always 1
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
        weights = torch.cat([weights, bias.double()[:, None]], dim=1)
    error = len(sequences) * weights @ torch.linalg.pinv(rows, rtol=1e-9)  # [classes, sequences]: p − y
    return (torch.softmax(logits.double(), dim=-1).T - error).argmax(dim=0).tolist()


def labels_from_parts(
    target: Target,
    gradient: Mapping[str, Tensor],
    rows: Tensor,
    numbers: Sequence[Sequence[int]],
    sequences: Sequence[Sequence[int]],
) -> list[int]:
    """Return the class of each sequence from its own part of the first value map's gradient.

    The map's input rows split dW = Σ δ xᵀ into one part per sequence. Dropout changes a part, but hardly its direction:
    the class whose gradient without dropout has the largest cosine with it is chosen.

    Args:
        target: the model.
        gradient: gradients by name.
        rows: the inputs of the map `[rows, width]`.
        numbers: the rows of each sequence.
        sequences: the token ids of each sequence.
    """
    value = target.layers[0].value
    output_gradients = value.weight_in(gradient).double() @ torch.linalg.pinv(rows)  # [outputs, rows]
    labels = []
    for own, sequence in zip(numbers, sequences, strict=True):
        part = output_gradients[:, list(own)] @ rows[list(own)]
        likeness = []
        for label in range(target.num_labels):
            guess = value.weight_in(batch_gradient(target, [sequence], [label], [value.weight])).double()
            likeness.append(float((guess * part).sum() / guess.norm().clamp(min=1e-300)))
        labels.append(likeness.index(max(likeness)))
    return labels


def nearest_labels(
    distances: Callable[[list[list[int]]], Tensor], sequences: int, classes: int
) -> tuple[list[int], float]:
    """Return the labels of a batch that minimise a distance, by two sweeps of coordinate descent, and that distance.

    Args:
        distances: the distance of the batch to the update under each of several labellings `[labellings]`.
        sequences: the batch size.
        classes: the number of classes.
    """
    labels, least = [0] * sequences, inf
    sweeps = 2 if sequences > 1 else 1
    for number in [*range(sequences)] * sweeps:
        tried = [[*labels[:number], label, *labels[number + 1 :]] for label in range(classes)]
        found = distances(tried)
        labels, least = tried[int(found.argmin())], float(found.min())
    return labels, least
