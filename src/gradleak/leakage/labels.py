"""The labels of the private texts, from the classifier's gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.exchange import Knowledge, Victim
from gradleak.leakage.perturbation import noise_level
from gradleak.targets import Target

# Random texts that show what a classifier predicts whatever it reads, and how many words each has.
NOISE_TEXTS = (32, 10)
# Defenses that change how long a gradient is, which nothing in the update shows.
CLIPPING = ("clip", "dpsgd")


def told_clipped(known: Knowledge) -> bool:
    """Whether the attacker is told that the gradient was clipped."""
    return any(defense.startswith(CLIPPING) for defense in known.defenses or ())


def single_label(target: Target, gradient: Mapping[str, Tensor]) -> int | None:
    """Return the class of a batch of one from the classifier's bias gradient, which is negative only there.

    The gradient of the bias is p − y: probability minus truth (iDLG, Zhao et al. 2020).
    """
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is None or target.task != "classification" or int((bias < 0).sum()) != 1:
        return None
    return int(bias.argmin())


def class_counts(target: Target, gradient: Mapping[str, Tensor], sequences: int) -> list[int] | None:
    """Return how many sequences of a batch have each class, from the classifier's bias gradient.

    It is the mean of p − y over the batch: the classes' shares in what the model predicts, less their shares in the
    truth. A model that is about to be trained predicts much the same for any words; one that has learnt to tell them
    apart does not, and then it is not known (None).

    Args:
        target: the model, a classifier.
        gradient: gradients by name; not clipped, which would draw all shares to the predicted ones.
        sequences: how many there are.
    """
    bias = gradient.get(f"{target.classifier}.bias")
    if bias is None or bool((bias == 0).any()):  # pruned or masked
        return None
    predicted = _predictions_of_noise(target)
    counts = sequences * (predicted.mean(dim=0) - bias.to(predicted))
    # Each sequence's p differs from the mean, and so does noise from none; sums of them differ by so much.
    noise = sequences * (noise_level(target, gradient) or 0.0)
    spread = (sequences * predicted.var(dim=0).max() + noise**2).sqrt()
    whole = counts.round()
    # In a large batch one wrong label is better than none known.
    most = max(0.5, sequences / 8)
    certain = 3 * float(spread) < most and 2 * float((counts - whole).abs().max()) < most
    found = [int(count) for count in whole.tolist()]
    return found if certain and sum(found) == sequences and min(found) >= 0 else None


@torch.no_grad()
def _predictions_of_noise(target: Target) -> Tensor:
    """Return the probabilities `[texts, classes]` that a classifier gives to random words."""
    possible = sorted(set(range(len(target.word_embeddings))) - set(target.impossible_ids))
    drawn = torch.randint(len(possible), NOISE_TEXTS, generator=torch.Generator().manual_seed(0))
    before, after = (torch.tensor(part, dtype=torch.long).expand(len(drawn), -1) for part in target.special_tokens)
    ids = torch.cat([before, torch.tensor(possible)[drawn], after], dim=1).to(target.device)
    logits = target.family.logits(target.model, target.embed(ids), torch.ones_like(ids, dtype=torch.bool), target.task)
    return logits.double().softmax(dim=-1)


def known_labels(target: Target, victim: Victim, *, any_order: bool = False) -> tuple[Sequence[int] | None, str | None]:
    """Return the classes as told or inferred, and a note where they were not told; None if they must be searched.

    Args:
        target: the model.
        victim: the update under attack.
        any_order: whether a batch's sequences may stand in any order. How many there are of each class is enough then,
            unless lengths that differ tell the sequences apart.
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
