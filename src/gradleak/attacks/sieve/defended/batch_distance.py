"""The distance of a whole batch from a defended update, by which its last words are decided.

What a client without local training sends is linear in the gradients of its sentences, and so, nearly, is what a few
steps of SGD at a small rate send: the engine compares many batches at once (`GradientDistance`). Steps of Adam are not
linear: each gradient is divided by its own size, and later steps remember earlier ones. There the optimiser is run on
the gradients of the guessed sentences, in the guessed order (`StepDistance`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Protocol as Interface

import torch
from torch import Tensor

from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.attacks.sieve.reading import DefendedReading
from gradleak.exchange import FedAvg
from gradleak.leakage.labels import labels_from_classifier, nearest_labels
from gradleak.leakage.recompute import batch_gradient
from gradleak.matching import Candidates, Cosine, Matcher
from gradleak.simulation.training import step_batches
from gradleak.targets import Target

SAMPLED = 2**14
"""Entries of each tensor by which steps of Adam are compared; all of them would not tell more."""

MOST_KEPT = 1024
"""How many sentences' gradients are kept: those of a batch are used again and again, and take a megabyte each."""

FEW_ORDERS = 5
"""All orders of up to this many sentences are compared; of more, orders that differ by a swap."""

LEAST_GAIN = 1e-6
"""Smaller gains of a distance are rounding."""


class BatchDistance(Interface):
    """Compares batches of sentences with an update; `DefendedReading.distance` is on the scale of a cosine distance."""

    def labelled(self, sentences: list[list[int]]) -> DefendedReading:
        """Return sentences with the classes, and in the order, that come nearest to the update."""

    def replaced(self, batch: DefendedReading, number: int, tried: Sequence[Tensor]) -> Tensor:
        """Return the distances of a batch with other sentences in place of one `[sentences]`."""


def batch_distance(observed: ObservedUpdate) -> BatchDistance:
    """Return the distance that fits the client's optimiser."""
    training = observed.protocol.training
    return StepDistance(observed, training) if observed.as_steps and training else GradientDistance(observed)


class GradientDistance:
    """The mean cosine distance of a batch's gradient tensors, by the engine.

    Args:
        observed: the update.
    """

    def __init__(self, observed: ObservedUpdate) -> None:
        self._observed = observed
        self._matcher = Matcher(observed.target, [observed.gradient], Cosine()).until(observed.deadline)

    def labelled(self, sentences: list[list[int]]) -> DefendedReading:
        """Return sentences with the classes whose gradient is nearest: a wrong one turns it far."""
        target = self._observed.target
        if self._observed.deadline.passed:  # no time is left to compare labellings
            labels = labels_from_classifier(target, self._observed.gradient, sentences) or [0] * len(sentences)
            return DefendedReading(sentences, labels, float(self._matcher(_candidates(target, [sentences], [labels]))))

        def distances(labels: list[list[int]]) -> Tensor:
            return self._matcher(_candidates(target, [sentences] * len(labels), labels))[0]

        labels, least = nearest_labels(distances, len(sentences), target.num_labels)
        return DefendedReading(sentences, labels, least)

    def replaced(self, batch: DefendedReading, number: int, tried: Sequence[Tensor]) -> Tensor:
        """Return the distances of a batch with other sentences in place of one `[sentences]`."""
        target = self._observed.target
        fixed = _candidates(target, [batch.sentences], [batch.labels])
        labels = [[batch.labels[number]] for _ in tried]
        candidates = _candidates(target, [[ids.tolist()] for ids in tried], labels)
        return self._matcher.with_fixed_sequences(fixed, number)(candidates)[0]


class StepDistance:
    """The mean cosine distance of the steps that Adam takes on a batch's gradients, at the weights before training.

    The weights hardly move during a few steps at the rates of fine-tuning, so a sentence's gradient is computed once,
    whichever step it is used in.

    Args:
        observed: the update.
        training: the protocol, with adam or adamw.
    """

    def __init__(self, observed: ObservedUpdate, training: FedAvg) -> None:
        self._observed, self._training = observed, training
        target = observed.target
        parts = [part for layer in target.layers for part in (layer.value, layer.attention_output)]
        self._names = list(dict.fromkeys(part.weight for part in parts if part.weight in observed.gradient))
        self._every = list(observed.gradient) if training.clip else self._names
        self._observed_steps = self._sampled(observed.as_sent)
        self._weights = self._sampled({name: target.parameters[name].detach() for name in self._names})
        self._known: dict[tuple[tuple[int, ...], int], tuple[list[Tensor], float]] = {}

    def labelled(self, sentences: list[list[int]]) -> DefendedReading:
        """Return sentences with the nearest classes, in the nearest order: both are improved in turn."""
        batch = DefendedReading(list(sentences), [0] * len(sentences), 2.0)
        batch.distance = self._distance(batch.sentences, batch.labels)
        while not self._observed.deadline.passed:
            before = batch.distance
            self._improve_labels(batch)
            self._improve_order(batch)
            if batch.distance > before - LEAST_GAIN:
                break
        return batch

    def replaced(self, batch: DefendedReading, number: int, tried: Sequence[Tensor]) -> Tensor:
        """Return the distances of a batch with other sentences in place of one `[sentences]`."""
        distances: list[float] = []
        for ids in tried:
            sentences = [*batch.sentences[:number], ids.tolist(), *batch.sentences[number + 1 :]]
            late = bool(distances) and self._observed.deadline.passed
            distances.append(2.0 if late else self._distance(sentences, batch.labels))
        return torch.tensor(distances)

    def _improve_labels(self, batch: DefendedReading) -> None:
        for number in range(len(batch.labels)):
            for label in range(self._observed.target.num_labels):
                if self._observed.deadline.passed:
                    return
                labels = [*batch.labels[:number], label, *batch.labels[number + 1 :]]
                self._take_if_nearer(batch, batch.sentences, labels)

    def _improve_order(self, batch: DefendedReading) -> None:
        count = len(batch.sentences)
        if count <= FEW_ORDERS:
            orders = [list(order) for order in permutations(range(count))]
        else:
            orders = [_swapped(count, one, other) for one, other in combinations(range(count), 2)]
        sentences, labels = list(batch.sentences), list(batch.labels)
        for order in orders:
            if self._observed.deadline.passed:
                return
            if self._take_if_nearer(batch, [sentences[n] for n in order], [labels[n] for n in order]):
                sentences, labels = (sentences, labels) if count <= FEW_ORDERS else (batch.sentences, batch.labels)

    def _take_if_nearer(self, batch: DefendedReading, sentences: list[list[int]], labels: list[int]) -> bool:
        distance = self._distance(sentences, labels)
        if distance > batch.distance - LEAST_GAIN:
            return False
        batch.sentences, batch.labels, batch.distance = list(sentences), list(labels), distance
        return True

    def _distance(self, sentences: Sequence[Sequence[int]], labels: Sequence[int]) -> float:
        steps = self._steps([self._gradient(tuple(ids), label) for ids, label in zip(sentences, labels, strict=True)])
        pairs = zip(steps, self._observed_steps, strict=True)
        cosines = [torch.nn.functional.cosine_similarity(own, seen, dim=0) for own, seen in pairs]
        return 1.0 - float(torch.stack(cosines).mean())

    def _gradient(self, sentence: tuple[int, ...], label: int) -> tuple[list[Tensor], float]:
        """Return sampled entries of a sentence's gradient, and its norm, which clipping needs."""
        key = (sentence, label)
        if key not in self._known and len(self._known) >= MOST_KEPT:
            del self._known[next(iter(self._known))]
        if key not in self._known:
            gradient = batch_gradient(self._observed.target, [sentence], [label], self._every)
            norm = float(torch.stack([own.norm() for own in gradient.values()]).norm()) if self._training.clip else 0.0
            self._known[key] = (self._sampled(gradient), norm)
        self._known[key] = found = self._known.pop(key)  # the most recently used are the last
        return found

    def _steps(self, gradients: Sequence[tuple[list[Tensor], float]]) -> list[Tensor]:
        """Return the mean step of the optimiser over local training, for each tensor."""
        training, count = self._training, len(gradients)
        total = training.num_steps(count)
        means = [torch.zeros_like(own) for own in self._weights]
        first, second = ([torch.zeros_like(own) for own in self._weights] for _ in range(2))
        for step, micro_batches in enumerate(step_batches(training, count, torch.Generator().manual_seed(0))):
            rows = [row for batch in micro_batches for row in batch.tolist()]
            factor = training.rate_factor(step, total) / total
            norm = sum(gradients[row][1] for row in rows) / len(rows)
            scale = min(1.0, training.clip / norm) if training.clip and norm > training.clip else 1.0
            for number, mean in enumerate(means):
                own = torch.stack([gradients[row][0][number] for row in rows]).mean(dim=0) * scale
                if training.optimizer == "adam":
                    own = own + training.weight_decay * self._weights[number]
                else:
                    mean += factor * training.weight_decay * self._weights[number]
                first[number].lerp_(own, 1 - training.beta1)
                second[number].lerp_(own.square(), 1 - training.beta2)
                size = (second[number] / (1 - training.beta2 ** (step + 1))).sqrt() + training.eps
                mean += factor * first[number] / (1 - training.beta1 ** (step + 1)) / size
        return means

    def _sampled(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        return [own.flatten()[:: max(1, own.numel() // SAMPLED)] for own in (tensors[name] for name in self._names)]


def _swapped(count: int, one: int, other: int) -> list[int]:
    order = list(range(count))
    order[one], order[other] = other, one
    return order


def _candidates(
    target: Target, batches: Sequence[Sequence[Sequence[int]]], labels: Sequence[Sequence[int]]
) -> Candidates:
    """Return candidates for one victim's batch, all with the same number of sentences."""
    batch = target.pad([ids for sentences in batches for ids in sentences])
    classes = torch.tensor([list(row) for row in labels], device=target.device)[None]
    return Candidates(batch.ids.view(*classes.shape, -1), batch.mask.view(*classes.shape, -1), classes)
