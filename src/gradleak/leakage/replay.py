"""Repeat a client's training on guessed texts: the update that it would have sent, to compare with the one observed.

The attacker knows the protocol (optimiser, learning rate, steps, precision, number format). Without dropout, and if
texts, labels and their order are right, the repetition differs from the observed update by rounding alone, whatever the
optimiser did to the gradients: this judges whole guesses, and proves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Protocol, Update
from gradleak.leakage.first_step import as_first_step, as_gradient
from gradleak.matching import vanishing_parameters
from gradleak.simulation.training import Batch, gradient, local_difference, step_batches
from gradleak.simulation.transmission import as_received
from gradleak.targets import Target

Text = tuple[Sequence[int], int]
"""Token ids and class of a text."""

SAME = 1e-5
"""A replay that differs by less than this fraction needs no better order."""

REORDERED = 0.3
"""Of more than three texts other orders are compared only if the replay differs by less than this; eight right texts in
a wrong order leave 0.06 to 0.24."""

FEW = 4
"""All orders of up to this many texts are compared; of more, exchanges are tried and kept if they come nearer."""


def can_replay(protocol: Protocol) -> bool:
    """Return whether one client's training can be repeated: that of a sum over clients is not known text by text."""
    training = protocol.training
    plain = training is None and protocol.send == "fp32" and protocol.precision == "fp32"
    return not plain and protocol.clients == 1 and not (training is not None and training.shuffle)


def replayed(
    target: Target,
    sequences: Sequence[Sequence[int]],
    labels: Sequence[int] | None,
    names: Sequence[str],
    protocol: Protocol,
) -> dict[str, Tensor] | None:
    """Return the gradient behind the update that a client without dropout sends of texts; None if it cannot train.

    Args:
        target: the model before training.
        sequences: token ids of the texts, in the client's order.
        labels: their classes.
        names: the parameters that the client trains.
        protocol: how it trains and sends.
    """
    tokens = target.pad(sequences)
    classes = tokens.ids if target.task == "causal-lm" else torch.tensor(labels, device=target.device)
    batch, training = Batch(tokens, classes), protocol.training
    try:
        if training is None:
            update = Update(gradient(target, batch, names, protocol.precision))
        else:
            stream = torch.Generator().manual_seed(0)  # draws nothing: texts are not shuffled
            change = local_difference(target, batch, names, training, stream, protocol.precision)
            update = Update(change, "difference", training=training)
        sent = {name: as_received(tensor, protocol.send) for name, tensor in update.tensors.items()}
    except GradleakError:
        return None
    return as_gradient(target, replace(update, tensors=sent, send=protocol.send))


@dataclass(frozen=True)
class ReplayedSteps:
    """What a client's local training does, step by step.

    Attributes:
        gradients: those by which each step is taken, of some parameters, by name.
        weights: the trained parameters before one of the steps, by name.
    """

    gradients: list[dict[str, Tensor]]
    weights: dict[str, Tensor]


def replayed_steps(
    target: Target,
    texts: Sequence[Text],
    names: tuple[Sequence[str], Sequence[str]],
    protocol: Protocol,
    number: int,
) -> ReplayedSteps:
    """Return the steps that a client without dropout takes on texts.

    Args:
        target: the model before training, a classifier.
        texts: the texts, in the client's order.
        names: the parameters that the client trains, and those whose gradients are returned.
        protocol: how it trains.
        number: the step before which the weights are returned.
    """
    if protocol.training is None:
        raise ValueError("only local training has steps")
    trained, wanted = names
    found = ReplayedSteps([], {})

    def keep(weights: Mapping[str, Tensor]) -> None:
        if len(found.gradients) == number:
            found.weights.update({name: weight.detach().clone() for name, weight in weights.items()})
        grads = {name: weights[name].grad for name in wanted}
        found.gradients.append(
            {name: torch.zeros_like(weights[name]) if own is None else own.clone() for name, own in grads.items()}
        )

    labels = torch.tensor([label for _, label in texts], device=target.device)
    batch = Batch(target.pad([ids for ids, _ in texts]), labels)
    stream = torch.Generator().manual_seed(0)  # draws nothing: texts are not shuffled
    local_difference(target, batch, trained, protocol.training, stream, protocol.precision, keep)
    return found


def nearest_order(
    target: Target,
    observed: Mapping[str, Tensor],
    texts: Sequence[Text],
    protocol: Protocol,
    deadline: Deadline,
) -> tuple[float, list[Text], dict[str, Tensor]]:
    """Return the order of texts whose replay is nearest to an update: the relative difference, the texts, the replay.

    Only texts of local training have an order. Parameters that no text can change are not compared. One step of Adam
    is compared as a step, and returned as one.

    Args:
        target: the model before training.
        observed: gradients by name.
        texts: the texts, in any order.
        protocol: how the client trains and sends.
        deadline: when to stop comparing.
    """
    search = _OrderSearch(target, observed, protocol, deadline, texts)
    if len(texts) <= FEW:
        while search.take_nearer(permutations(texts)):
            pass
        return search.best
    gained = True
    while gained:
        gained = False
        for width in dict.fromkeys((1, _texts_of_a_step(len(texts), protocol))):
            while search.take_nearer(_exchanged(search.best[1], width)):
                gained = True
    return search.best


class _OrderSearch:
    """Compares orders of texts with an update, none twice.

    Args:
        target: the model before training.
        observed: gradients by name.
        protocol: how the client trains and sends.
        deadline: when to stop comparing.
        texts: the first order.

    Attributes:
        best: the nearest order so far: the relative difference, the texts, the replay.
    """

    def __init__(
        self,
        target: Target,
        observed: Mapping[str, Tensor],
        protocol: Protocol,
        deadline: Deadline,
        texts: Sequence[Text],
    ) -> None:
        self._target, self._observed, self._protocol, self._deadline = target, observed, protocol, deadline
        self._most = REORDERED if len(texts) > 3 else torch.inf
        self._tried = {_steps(texts, protocol)}
        self.best = self._compared(texts)

    def take_nearer(self, orders: Iterable[Sequence[Text]]) -> bool:
        """Take the first order that comes nearer, and return whether there is one."""
        for order in orders:
            if self._deadline.passed or not SAME < self.best[0] < self._most:
                return False
            if _steps(order, self._protocol) in self._tried:
                continue
            self._tried.add(_steps(order, self._protocol))
            other = self._compared(order)
            if other[0] < self.best[0]:
                self.best = other
                return True
        return False

    def _compared(self, order: Sequence[Text]) -> tuple[float, list[Text], dict[str, Tensor]]:
        least, found = _compared(self._target, self._observed, order, self._protocol)
        return least, list(order), found


def _steps(texts: Sequence[Text], protocol: Protocol) -> tuple[tuple[Text, ...], ...]:
    """Return the texts of each step, in no order: the texts of one step may be exchanged."""
    count, size = len(texts), _texts_of_a_step(len(texts), protocol)
    each = [(tuple(ids), label) for ids, label in texts]
    return tuple(tuple(sorted(each[first : first + size])) for first in range(0, count, size))


def _texts_of_a_step(count: int, protocol: Protocol) -> int:
    """Return how many texts each step takes; 1 if steps reach from one epoch into the next."""
    training = protocol.training
    size = (training.batch or count) * training.accumulate if training else count
    return 1 if count % size else size


def are_all_trained_on(count: int, protocol: Protocol) -> bool:
    """Return whether a client with so many texts takes every one of them: a few steps may end before the last text."""
    if protocol.training is None:
        return True
    steps = step_batches(protocol.training, count, torch.Generator().manual_seed(0))
    return {row for micros in steps for micro in micros for row in micro.tolist()} == set(range(count))


def replay_difference(
    target: Target, observed: Mapping[str, Tensor], texts: Sequence[Text], protocol: Protocol
) -> float:
    """Return the difference of the replay of texts in this order from an update, relative to the update's norm."""
    return _compared(target, observed, texts, protocol)[0]


def _compared(
    target: Target, observed: Mapping[str, Tensor], texts: Sequence[Text], protocol: Protocol
) -> tuple[float, dict[str, Tensor]]:
    names = [name for name in observed if name not in vanishing_parameters(target)]
    found = replayed(target, [ids for ids, _ in texts], [label for _, label in texts], list(observed), protocol)
    if found is None:
        return torch.inf, {}
    seen = as_first_step({name: observed[name] for name in names}, protocol.training)
    found = as_first_step({name: found[name] for name in names}, protocol.training)
    return _difference(seen, found), found


def _exchanged(texts: Sequence[Text], width: int) -> Iterator[Sequence[Text]]:
    """Yield the orders with so many adjacent texts exchanged for others.

    Which texts share a step shows in how they were rounded, the order of the steps in how the weights drifted: once the
    first is right, no exchange of single texts improves the second, and whole steps are exchanged.
    """
    for one, other in combinations(range(0, len(texts), width), 2):
        order = list(texts)
        order[one : one + width], order[other : other + width] = texts[other : other + width], texts[one : one + width]
        yield order


def _difference(observed: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of all tensors, relative to that of the observed ones."""
    misses = torch.stack([(tensor - observed[name]).norm() for name, tensor in found.items()]).norm()
    return float(misses / torch.stack([observed[name].norm() for name in found]).norm().clamp(min=1e-30))
