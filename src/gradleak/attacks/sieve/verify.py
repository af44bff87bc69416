"""What an update proves of texts that were read from it; `docs/verified.md` defines the words.

Without dropout the gradient of the texts can be computed again and has to be the observed one: `by_whole_gradient`.
Under dropout nobody knows the masks of the later layers. The first layer's gradients must then leave no room for other
tokens (`surplus`), and nothing else may contradict (`consistency.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.sieve.labels import padded
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.matching import vanishing_parameters
from gradleak.targets import Target

WHOLE = 1e-5
"""Two float32 gradients of one batch differ by about 1e-6 of their norm; of batches that differ, by 1e-3 or more."""

EACH = 1e-3
"""The same for a single tensor, of which some are sums that nearly cancel."""

SURPLUS = 64
"""Bits by which the equations must outnumber what tells all tokens, positions and masks apart."""

WEIGHT = 1e-3
"""A text whose weight in a batch is below this share of the largest is not proven."""

EXACTLY = 1e-4
"""Weights of a batch add up to 1, and are multiples of 1 / B, with this precision."""

MOST_COPIES = 16

PROVEN = "proven by the whole gradient"


@dataclass(frozen=True)
class Proof:
    """What an update proves of texts.

    Attributes:
        verified: each text was trained on, if the update was computed honestly from the stated weights.
        complete: nothing else was: the texts explain the whole update.
        labels_verified: the labels are proven, too.
        counts: how often each text occurs if the update is that of one batch, up to a common factor; empty if not told.
        evidence: what the proof rests on, or what it failed by, a line each.
        unexplained: share of the update that the texts do not account for.
    """

    verified: bool = False
    complete: bool = False
    labels_verified: bool = False
    counts: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    unexplained: float = 1.0


def gradient_of(
    target: Target, sentences: Sequence[Sequence[int]], labels: Sequence[int] | None, names: Sequence[str]
) -> dict[str, Tensor]:
    """Return the gradient that a client without dropout computes on a batch."""
    ids, mask = padded(target, sentences)
    classes = ids if target.task == "causal-lm" else torch.tensor(labels, device=target.device)
    leaves = {name: target.parameters[name].detach().clone().requires_grad_() for name in names}
    with torch.enable_grad():
        loss = target.loss_with(leaves, ids, mask, classes)
        values = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, values, strict=True))


def by_whole_gradient(
    target: Target, observed: Mapping[str, Tensor], sentences: Sequence[Sequence[int]], labels: Sequence[int] | None
) -> Proof:
    """Prove a batch by computing its gradient without dropout.

    A batch whose gradient is the observed one is proven, and nothing else was in it. Where it is not, each text may
    have another weight: others left no trace, as a confident model's examples do, or the update was scaled. The texts
    are then proven, and that there were no others is not.

    Args:
        target: the model.
        observed: what was sent.
        sentences: the texts, each once.
        labels: their classes.
    """
    if not sentences or (labels is None and target.task == "classification"):
        return Proof()
    names = [name for name in observed if name not in vanishing_parameters(target)]
    whole, worst = difference(observed, gradient_of(target, sentences, labels, names))
    numbers = sum(observed[name].numel() for name in names)
    if whole < WHOLE and worst < EACH:
        line = (
            f"proven by the whole gradient: all {numbers:,} numbers that a text can change, to {whole:.0e} of its norm"
        )
        return Proof(True, True, target.task == "classification", (), (line,), whole)
    unweighted = Proof(unexplained=whole)
    pairs = list(zip(map(tuple, sentences), labels or [0] * len(sentences), strict=True))
    weights = _weights(target, observed, pairs)
    if weights is None:
        return unweighted
    total: dict[str, Tensor] = {}
    for (sentence, label), weight in zip(pairs, weights, strict=True):
        for name, own in gradient_of(target, [sentence], [label], names).items():
            total[name] = total.get(name, 0.0) + weight * own.double()
    weighted, worst = difference(observed, total)
    if weighted >= WHOLE or worst >= EACH:
        return unweighted
    line = f"{PROVEN}: all {numbers:,} numbers that a text can change, to {weighted:.0e}, each text weighted"
    lengths = [len(sentence) for sentence, _ in pairs] if target.task == "causal-lm" else [2] * len(pairs)
    counts = _counts(weights, lengths)
    lines = [line]
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
    """Return the weight of each text and label in the observed gradient by least squares; None if one has none."""
    layer = target.layers[0]
    names = list(
        dict.fromkeys(part.weight for part in (layer.value, layer.attention_output) if part.weight in observed)
    )
    if not names:
        return None
    columns = torch.stack(
        [torch.cat([own.flatten().double() for own in gradient_of(target, [s], [y], names).values()]) for s, y in pairs]
    )
    wanted = torch.cat([observed[name].flatten().double() for name in names])
    weights = torch.linalg.lstsq(columns @ columns.T, (columns @ wanted)[:, None]).solution[:, 0]
    if not bool(torch.isfinite(weights).all()) or float(weights.min()) <= WEIGHT * float(weights.max()):
        return None
    return weights.tolist()


def _counts(weights: Sequence[float], lengths: Sequence[int]) -> tuple[int, ...]:
    """Return how often each text occurs by its weight in a mean over one batch; nothing if the weights do not fit.

    Args:
        weights: of each text in the mean.
        lengths: tokens of each text: a language model's loss is a mean over all predictions. Alike for a classifier.
    """
    each = [weight / (length - 1) for weight, length in zip(weights, lengths, strict=True)]
    for factor in range(1, MOST_COPIES + 1):
        counts = [factor * weight / min(each) for weight in each]
        if all(abs(count - round(count)) < EXACTLY * count for count in counts):
            return tuple(map(round, counts))
    return ()


def difference(observed: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> tuple[float, float]:
    """Return how far a gradient is from the observed one, as shares: of the whole, and of the worst tensor.

    Tensors that hold next to nothing of the whole are not judged alone: they are rounding.
    """
    sizes = {name: float(observed[name].double().norm()) for name in found}
    misses = {name: float((own.double() - observed[name].double()).norm()) for name, own in found.items()}
    whole = math.hypot(*sizes.values())
    if not whole:
        return math.inf, math.inf
    worst = max((misses[name] / size for name, size in sizes.items() if size > 1e-3 * whole), default=math.inf)
    return math.hypot(*misses.values()) / whole, worst


def unexplained(gradient: Tensor, rows: Tensor) -> float:
    """Return ‖G − G X⁺X‖ / ‖G‖: the share of a gradient that the rows found do not account for."""
    gradient, rows = gradient.double(), rows.double()
    size = float(gradient.norm())
    if not size:
        return 1.0
    basis = torch.linalg.qr(rows.T)[0]
    return float((gradient - (gradient @ basis) @ basis.T).norm()) / size


def surplus(space: Subspace, dropped: float, vocabulary: int, accuracy: float) -> int | None:
    """Return how many equations more than unknowns the rows of a space meet; None if a wrong one could by chance.

    A mask and a token carry width · H(dropped) + log₂(vocabulary · positions) bits; every dimension outside the row
    space is an equation that holds to `accuracy` and rules out all but that share of them.
    """
    share = min(max(dropped, 1e-3), 0.5)
    entropy = -share * math.log2(share) - (1 - share) * math.log2(1 - share)
    needed = space.width * entropy + math.log2(vocabulary * max(space.rank, 1))
    bits = -math.log2(accuracy)
    spare = (space.width - space.rank) * bits - needed
    return int(space.rank * spare / bits) if spare > SURPLUS else None
