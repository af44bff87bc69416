"""Prove texts by recomputing the gradient without dropout; `docs/verified.md` defines the words.

Used by sieve for its readings without dropout, and by auto for the texts of every attack. Under dropout, where the
gradient cannot be recomputed, sieve has a proof of another kind (`attacks/sieve/dropout/proof.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.exchange import Deadline, Protocol
from gradleak.leakage.first_step import as_first_step
from gradleak.leakage.recompute import batch_gradient
from gradleak.leakage.replay import are_all_trained_on, can_replay, nearest_order
from gradleak.matching import vanishing_parameters
from gradleak.targets import Target

WHOLE = 1e-5
"""Two float32 gradients of one batch differ by about 1e-6 of their norm; of different batches, by 1e-3 or more."""

EACH = 1e-3
"""The same for a single tensor; some tensors are sums that nearly cancel."""

WEIGHT = 1e-3
"""A text whose weight in a batch is below this fraction of the largest is not proven."""

REPLAYED_WHOLE, REPLAYED_EACH = 5e-4, 2e-2
"""The same for an update that was rounded or trained for steps, and whose client was replayed. What float32 leaves is
amplified where it decides how a number is rounded: half precision leaves 1e-4. So is what another text leaves: 1e-3 of
a gradient is 2e-3 of one cast to bfloat16."""

INFLUENCE = 0.02
"""A replay proves a text if what it leaves unexplained is below this fraction of the text's own gradient: of a text
that the model is sure of, nearly nothing is in the update, and any other would do as well."""

TOO_LITTLE = "no proof: a text has too little of the update to tell it from others"

TOO_MANY = "no proof: the client's steps take fewer texts than were read, so that the update says nothing of the others"

EXACTLY = 1e-4
"""Relative precision to which the weights of a batch sum to 1 and are multiples of 1 / B."""

MOST_COPIES = 16
"""Weights are compared with multiples of 1 / B for up to this many copies of the rarest text."""

PROVEN = "proven by the whole gradient"
"""How a note of a proof by recomputation begins."""


@dataclass(frozen=True)
class Proof:
    """What an update proves about texts.

    Attributes:
        verified: each text was trained on, given that the update was computed honestly from the stated weights.
        complete: nothing else was: the texts explain the whole update.
        labels_verified: the labels are proven as well.
        counts: how often each text occurs if the update is that of one batch, up to a common factor; empty if unknown.
        evidence: what the proof rests on, or why it failed, one line each.
        unexplained: the fraction of the update's norm that the texts do not account for.
    """

    verified: bool = False
    complete: bool = False
    labels_verified: bool = False
    counts: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    unexplained: float = 1.0


def prove_by_whole_gradient(
    target: Target,
    observed: Mapping[str, Tensor],
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int] | None,
    protocol: Protocol | None = None,
    deadline: Deadline | None = None,
) -> Proof:
    """Prove a batch by computing its gradient without dropout.

    A batch whose gradient equals the observed one is proven and complete. Otherwise the texts may have unequal
    weights: others left no trace, as a confident model's examples do, or the update was scaled. If some positive
    weights reproduce the gradient, the texts are proven, but not that there were no others.

    Args:
        target: the model.
        observed: gradients by name.
        sequences: the texts, each once.
        labels: their classes.
        protocol: how the update was made, if it is known to be other than one gradient: training is then replayed.
        deadline: when to stop searching the order of the texts in local training.
    """
    if not sequences or (labels is None and target.task == "classification"):
        return Proof()
    if protocol is not None and can_replay(protocol):
        return _replayed_proof(target, observed, sequences, labels, protocol, deadline or Deadline())
    names = [name for name in observed if name not in vanishing_parameters(target)]
    whole, worst = relative_difference(observed, batch_gradient(target, sequences, labels, names))
    numbers = sum(observed[name].numel() for name in names)
    if whole < WHOLE and worst < EACH:
        line = f"{PROVEN}: all {numbers:,} numbers that a text can change, to {whole:.0e} of its norm"
        return Proof(True, True, target.task == "classification", (), (line,), whole)
    pairs = list(zip(map(tuple, sequences), labels or [0] * len(sequences), strict=True))
    return _weighted_proof(target, observed, pairs, names) or Proof(unexplained=whole)


def _replayed_proof(
    target: Target,
    observed: Mapping[str, Tensor],
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int] | None,
    protocol: Protocol,
    deadline: Deadline,
) -> Proof:
    """Prove a batch by repeating the client's training on it."""
    texts = list(zip(sequences, labels or [0] * len(sequences), strict=True))
    least, _, found = nearest_order(target, observed, texts, protocol, deadline)
    if not found:
        return Proof()
    worst = relative_difference(as_first_step(observed, protocol.training), found)[1]
    if least >= REPLAYED_WHOLE or worst >= REPLAYED_EACH:
        return Proof(unexplained=least)
    if not are_all_trained_on(len(texts), protocol):
        return Proof(evidence=(TOO_MANY,), unexplained=least)
    if least > INFLUENCE * _least_influence(target, texts, list(found)):
        return Proof(evidence=(TOO_LITTLE,), unexplained=least)
    numbers = sum(tensor.numel() for tensor in found.values())
    line = (
        f"{PROVEN}, the client's training and sending repeated on these texts: all {numbers:,} numbers that a text can "
        f"change, to {least:.0e} of its norm"
    )
    return Proof(True, True, target.task == "classification", (), (line,), least)


def _least_influence(target: Target, texts: Sequence[tuple[Sequence[int], int]], names: Sequence[str]) -> float:
    """Return the norm of the smallest gradient of a text, relative to the sum over all."""
    total: dict[str, Tensor] = {}
    sizes = []
    for ids, label in texts:
        own = batch_gradient(target, [ids], [label], names)
        sizes.append(math.hypot(*(float(tensor.double().norm()) for tensor in own.values())))
        total = {name: total.get(name, 0.0) + tensor.double() for name, tensor in own.items()}
    return min(sizes) / max(math.hypot(*(float(tensor.norm()) for tensor in total.values())), 1e-300)


def _weighted_proof(
    target: Target, observed: Mapping[str, Tensor], pairs: Sequence[tuple[tuple[int, ...], int]], names: Sequence[str]
) -> Proof | None:
    """Prove texts (token ids, label) that reproduce the gradient with unequal weights; None if none do."""
    weights = _weights(target, observed, pairs)
    if weights is None:
        return None
    total: dict[str, Tensor] = {}
    for (sequence, label), weight in zip(pairs, weights, strict=True):
        for name, own in batch_gradient(target, [sequence], [label], names).items():
            total[name] = total.get(name, 0.0) + weight * own.double()
    weighted, worst = relative_difference(observed, total)
    if weighted >= WHOLE or worst >= EACH:
        return None
    numbers = sum(observed[name].numel() for name in names)
    lines = [f"{PROVEN}: all {numbers:,} numbers that a text can change, to {weighted:.0e}, each text weighted"]
    lengths = [len(sequence) for sequence, _ in pairs] if target.task == "causal-lm" else [2] * len(pairs)
    counts = _counts(weights, lengths)
    if len(set(counts)) > 1:
        uneven = ", ".join(map(str, counts))
        lines.append(f"the texts weigh {uneven}: some occur more often, or in smaller batches")
    if counts and abs(math.fsum(weights) - 1) < EXACTLY:
        return Proof(True, True, target.task == "classification", counts, tuple(lines), weighted)
    lines.append(
        f"the texts have {100 * sum(weights):.3g} % of a batch's weight: others left no trace, "
        "or the update was scaled, as clipping does"
    )
    return Proof(True, False, False, counts, tuple(lines), weighted)


def _weights(
    target: Target, observed: Mapping[str, Tensor], pairs: Sequence[tuple[tuple[int, ...], int]]
) -> list[float] | None:
    """Return the least-squares weight of each text in the observed gradient; None if one is not positive."""
    layer = target.layers[0]
    names = list(
        dict.fromkeys(part.weight for part in (layer.value, layer.attention_output) if part.weight in observed)
    )
    if not names:
        return None
    columns = torch.stack(
        [
            torch.cat([own.flatten().double() for own in batch_gradient(target, [ids], [label], names).values()])
            for ids, label in pairs
        ]
    )
    wanted = torch.cat([observed[name].flatten().double() for name in names])
    weights = torch.linalg.lstsq(columns @ columns.T, (columns @ wanted)[:, None]).solution[:, 0]
    if not bool(torch.isfinite(weights).all()) or float(weights.min()) <= WEIGHT * float(weights.max()):
        return None
    return weights.tolist()


def _counts(weights: Sequence[float], lengths: Sequence[int]) -> tuple[int, ...]:
    """Return how often each text occurs, from its weight in the mean over one batch; empty if the weights do not fit.

    Args:
        weights: the weight of each text in the mean.
        lengths: the tokens of each text, as a language model's loss is a mean over predictions; all equal for a
            classifier.
    """
    each = [weight / (length - 1) for weight, length in zip(weights, lengths, strict=True)]
    for factor in range(1, MOST_COPIES + 1):
        counts = [factor * weight / min(each) for weight in each]
        if all(abs(count - round(count)) < EXACTLY * count for count in counts):
            return tuple(map(round, counts))
    return ()


def relative_difference(observed: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> tuple[float, float]:
    """Return the difference of a gradient from the observed one, relative to its norm: in all, and of the worst tensor.

    Tensors with less than 1e-3 of the norm are not compared one by one: they are mostly rounding.
    """
    sizes = {name: float(observed[name].double().norm()) for name in found}
    misses = {name: float((own.double() - observed[name].double()).norm()) for name, own in found.items()}
    whole = math.hypot(*sizes.values())
    if not whole:
        return math.inf, math.inf
    worst = max((misses[name] / size for name, size in sizes.items() if size > 1e-3 * whole), default=math.inf)
    return math.hypot(*misses.values()) / whole, worst
