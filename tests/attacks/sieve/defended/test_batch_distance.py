from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.defended.batch_distance import GradientDistance, StepDistance, batch_distance
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import as_gradient
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.tokens import possible_words
from wide_targets import LABELS, TEXTS, ids_of, wider_target


def observed(fedavg: FedAvg | None) -> ObservedUpdate:
    target = wider_target()
    update = Client(target, fedavg=fedavg).update(TEXTS[:3], LABELS[:3])
    gradient = as_gradient(target, update)
    words = possible_words(target, gradient)
    return ObservedUpdate(
        target, first_layer_inputs(target), gradient, words, target.max_length, protocol=update.protocol
    )


@pytest.mark.parametrize(
    "fedavg",
    [
        FedAvg(steps=3, lr=1e-5, batch=1, optimizer="adamw", weight_decay=0.1),
        FedAvg(steps=3, lr=1e-5, batch=1, optimizer="adam", clip=0.01, schedule="linear"),
    ],
)
def test_steps_of_adam_are_predicted_and_classes_and_order_found(fedavg: FedAvg) -> None:
    update = observed(fedavg)
    truth = [list(ids) for ids in ids_of(update.target)[:3]]
    distance = batch_distance(update)
    assert isinstance(distance, StepDistance)
    batch = distance.labelled([truth[2], truth[0], truth[1]])
    assert batch.sentences == truth
    assert batch.labels == LABELS[:3]
    assert batch.distance < 0.02
    wrong = torch.tensor([*truth[1][:-2], truth[1][-1]])
    same, other = distance.replaced(batch, 1, [torch.tensor(truth[1]), wrong]).tolist()
    assert same == pytest.approx(batch.distance)
    assert other > 2 * same


def test_gradients_and_sgd_are_compared_by_the_engine() -> None:
    for fedavg in (None, FedAvg(steps=2, lr=1e-3), FedAvg(steps=1, lr=1e-3, optimizer="adamw")):
        assert isinstance(batch_distance(observed(fedavg)), GradientDistance)
