"""What an attacker reads from updates of image models: flat gradients, labels, and how a defense changed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.vision.sample_gradients import flat
from gradleak.vision.target import ImageTarget

Channel = Literal["exact", "noise", "sign", "pruned"]
"""How the sent gradient relates to the true one: itself, with noise, its signs, or its largest entries."""

PRUNED_SHARE = 0.5  # of zeros, from which on an update of unknown defense counts as pruned
_PRUNING = ("prune", "prune-global", "topk")


@dataclass(frozen=True)
class Observation:
    """The gradients of several clients, each of a batch of the same number of images.

    Attributes:
        sent: all entries in the order of the target's parameters `[clients, entries]`.
        labels: classes `[clients, images]`.
        doubtful: whether a client's labels are only a guess `[clients]`.
        channel: how `sent` relates to the gradient.
        deviation: standard deviation of the noise; 0 without.
        sizes: numbers of entries that were pruned together: of the tensors, or of all of them.
    """

    sent: Tensor
    labels: Tensor
    doubtful: Tensor
    channel: Channel = "exact"
    deviation: float = 0.0
    sizes: tuple[int, ...] = ()

    def select(self, rows: slice) -> Observation:
        """Return some of the clients."""
        return replace(self, sent=self.sent[rows], labels=self.labels[rows], doubtful=self.doubtful[rows])

    @property
    def count(self) -> int:
        """Number of clients."""
        return len(self.sent)


def observe(
    target: ImageTarget,
    gradients: dict[str, Tensor],
    labels: Tensor | None = None,
    defenses: Sequence[str] | None = None,
) -> Observation:
    """Return what the attacker sees.

    Args:
        target: the model.
        gradients: as they were sent, by name `[clients, *shape]`.
        labels: classes `[clients, images]` if they are known; otherwise those of single images are inferred.
        defenses: as written on the command line, such as `noise:0.1`; None to infer their kind from the numbers.
    """
    sent = flat(gradients, list(target.parameters))
    if labels is None:
        inferred, doubtful = infer_labels(target, gradients)
        labels = inferred[:, None]
    else:
        doubtful = torch.zeros(len(sent), dtype=torch.bool, device=sent.device)
    channel, deviation = _channel(sent, defenses)
    tensors = tuple(parameter.numel() for parameter in target.parameters.values())
    by_tensor = defenses is not None and any(text.startswith("prune:") for text in defenses)
    return Observation(sent, labels, doubtful, channel, deviation, tensors if by_tensor else (sum(tensors),))


def infer_labels(target: ImageTarget, gradients: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the class of the only image of each client, and whether it is only a guess.

    It is the only negative row of the classifier (Zhao et al. 2020). Pruning may leave none of its entries; then any
    row that is not positive may be it, and the first one is returned.
    """
    weight, bias = target.head
    if weight not in gradients:
        raise GradleakError(f"the update lacks {weight}, from which the label is read; give --know labels")
    total = gradients[weight].sum(dim=2)
    least = (total + gradients[bias] if bias in gradients else total).min(dim=1)
    return least.indices, least.values >= 0


def _channel(sent: Tensor, defenses: Sequence[str] | None) -> tuple[Channel, float]:
    if defenses is None:
        return _apparent_channel(sent), 0.0
    for text in reversed(defenses):  # the last one that loses information decides
        name, _, value = text.partition(":")
        if name == "sign":
            return "sign", 0.0
        if name in _PRUNING:
            return "pruned", 0.0
        if name in ("noise", "laplace", "dpsgd"):
            return "noise", float(value.split(",")[-1])
    return "exact", 0.0


def _apparent_channel(sent: Tensor) -> Channel:
    zeros = float((sent == 0).float().mean())
    if bool(((sent == 0) | (sent.abs() == 1)).all()):
        return "sign"
    return "pruned" if zeros > PRUNED_SHARE else "exact"


def matching_loss(seen: Observation, gradients: Tensor) -> Tensor:
    """Return each client's distance from its candidate's gradient `[clients, entries]`, as in LTI, appendix A.1.

    Cosine distance; over the entries that were sent under pruning; under sign compression the squares of the entries
    that have the wrong sign (equation 3), since a gradient that matches has the right signs, not the values ±1.
    """
    if seen.channel == "sign":
        return (-gradients * seen.sent).clamp_min(0).square().sum(dim=1)
    kept = gradients * (seen.sent != 0) if seen.channel == "pruned" else gradients
    # 1 − cosine, as half the squared distance of unit vectors: close to a match, the difference of 1 and the cosine has
    # no digits left in single precision, and this still has all of them.
    return (_units(kept) - _units(seen.sent)).square().sum(dim=1) / 2


def excess(seen: Observation, gradients: Tensor) -> Tensor:
    """Return how far candidates' gradients `[clients, entries]` are from any that pruning would have sent so.

    The squared distance of each client, relative to what was sent: sent entries differ by their difference, the others
    by what they have beyond the smallest that was sent. Unlike `matching_loss` it counts sizes, and entries not sent.
    """
    kept = seen.sent != 0
    beyond = (gradients.abs() - _limits(seen)).clamp_min(0)
    misfit = torch.where(kept, gradients - seen.sent, beyond).square().sum(dim=1)
    return misfit / seen.sent.square().sum(dim=1).clamp_min(1e-12)


def _units(vectors: Tensor) -> Tensor:
    return vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True).clamp_min(1e-12)


def negative_log_likelihood(seen: Observation, gradients: Tensor, tolerance: float) -> Tensor:
    """Return how unlikely what was sent is if the gradient were `[clients, entries]`, for each client.

    Gaussian noise: its density. Signs: each flips with the probability that noise of the tolerance flips it. Pruning:
    sent entries are known within the tolerance, and all others are no larger than the smallest one that was sent.

    Args:
        seen: what was sent.
        gradients: those of candidates.
        tolerance: standard deviation that is assumed of each entry; the noise's own, if that is larger.
    """
    spread = max(tolerance, seen.deviation)
    if seen.channel == "sign":
        wrong = -torch.special.log_ndtr(gradients * seen.sent / spread)
        return (wrong * (seen.sent != 0)).sum(dim=1)
    misfit = (gradients - seen.sent).square() / (2 * spread**2)
    if seen.channel != "pruned":
        return misfit.sum(dim=1)
    kept = seen.sent != 0
    too_large = -torch.special.log_ndtr((_limits(seen) - gradients.abs()) / spread)
    return torch.where(kept, misfit, too_large).sum(dim=1)


def _limits(seen: Observation) -> Tensor:
    """Return the smallest magnitude that was sent, of those an entry was compared with: `[clients, entries]`."""
    parts = torch.split(seen.sent.abs(), list(seen.sizes), dim=1)
    return torch.cat([_least(part).expand_as(part) for part in parts], dim=1)


def _least(part: Tensor) -> Tensor:
    return part.masked_fill(part == 0, torch.inf).amin(dim=1, keepdim=True).nan_to_num(posinf=1e6)
