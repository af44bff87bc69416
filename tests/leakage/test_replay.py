"""A client's training, repeated on the texts that it saw, gives the update that it sent; on others it does not."""

from __future__ import annotations

import pytest
import torch

from gradleak.exchange import Deadline, Update
from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import as_gradient
from gradleak.leakage.proof import REPLAYED_WHOLE, prove_by_whole_gradient
from gradleak.leakage.replay import can_replay, nearest_order, replay_difference, replayed_steps
from gradleak.targets import Target
from wide_targets import LABELS, TEXTS, ids_of, wider_target

PROTOCOLS = {
    "bf16": {"send": "bf16"},
    "fp16": {"send": "fp16"},
    "int8": {"send": "int8"},
    "autocast": {"precision": "bf16"},
    "sgd": {"fedavg": FedAvg(steps=3, lr=1e-2, batch=1)},
    "adamw": {"fedavg": FedAvg(steps=3, lr=5e-5, batch=1, optimizer="adamw")},
}
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def trained(protocol: str) -> tuple[Target, Update, list[tuple[int, ...]], list[int]]:
    target = wider_target()
    update = Client(target, **PROTOCOLS[protocol]).update(TEXTS[:3], LABELS[:3])
    return target, update, ids_of(target)[:3], LABELS[:3]


@every_protocol
def test_the_texts_of_an_update_are_proven_by_a_replay_in_any_order(protocol: str) -> None:
    target, update, texts, labels = trained(protocol)
    gradient = as_gradient(target, update)
    for order in (1, -1):
        proof = prove_by_whole_gradient(target, gradient, texts[::order], labels[::order], update.protocol)
        assert proof.verified
        assert proof.complete
        assert "repeated on these texts" in proof.evidence[0]


@every_protocol
def test_near_misses_are_not_proven_by_a_replay(protocol: str) -> None:
    target, update, texts, labels = trained(protocol)
    gradient = as_gradient(target, update)
    ids = texts[0]
    for wrong in ((*ids[:-2], ids[-1]), (*ids[:1], ids[1] % 30 + 6, *ids[2:])):
        assert not prove_by_whole_gradient(target, gradient, [wrong, *texts[1:]], labels, update.protocol).verified
    assert not prove_by_whole_gradient(target, gradient, texts[:2], labels[:2], update.protocol).verified
    assert not prove_by_whole_gradient(target, gradient, texts, [1 - labels[0], *labels[1:]], update.protocol).verified


def test_the_order_of_local_steps_is_found() -> None:
    target, update, texts, labels = trained("sgd")
    gradient = as_gradient(target, update)
    pairs = list(zip(texts, labels, strict=True))
    mixed = [pairs[2], pairs[0], pairs[1]]
    least, order, _ = nearest_order(target, gradient, mixed, update.protocol, Deadline())
    assert order == pairs
    assert least < replay_difference(target, gradient, mixed, update.protocol)


def test_whole_steps_are_exchanged_once_their_texts_are_right() -> None:
    target, texts = wider_target(), [*TEXTS, *(f"{text} {TEXTS[0]}" for text in TEXTS)][:6]
    update = Client(target, fedavg=FedAvg(steps=3, lr=5e-5, batch=2)).update(texts, [0, 1, 1, 0, 1, 0])
    pairs = list(zip(ids_of(target, texts), [0, 1, 1, 0, 1, 0], strict=True))
    gradient = as_gradient(target, update)
    least, order, _ = nearest_order(target, gradient, pairs[::-1], update.protocol, Deadline())
    assert [set(order[first : first + 2]) for first in (0, 2, 4)] == [
        set(pairs[first : first + 2]) for first in (0, 2, 4)
    ]
    assert least < REPLAYED_WHOLE < replay_difference(target, gradient, pairs[::-1], update.protocol)


def test_sums_over_clients_shuffled_texts_and_plain_gradients_are_not_replayed() -> None:
    plain = Update({})
    assert not can_replay(plain.protocol)
    assert can_replay(Update({}, send="bf16").protocol)
    assert not can_replay(Update({}, send="bf16", clients=2).protocol)
    shuffled = FedAvg(epochs=2, lr=1e-3, batch=1, shuffle=True)
    assert not can_replay(Update({}, "difference", training=shuffled).protocol)


def test_another_text_in_place_of_one_that_the_model_is_sure_of_is_not_proven() -> None:
    target = wider_target()
    with torch.no_grad():
        target.parameters["classifier.bias"][0] += 14.0
    texts, labels = ids_of(target), [0, 1]
    update = Client(target, send="bf16").update(TEXTS[:2], labels)
    gradient = as_gradient(target, update)
    other = [texts[2], texts[1]]
    assert replay_difference(target, gradient, list(zip(other, labels, strict=True)), update.protocol) < REPLAYED_WHOLE
    assert not prove_by_whole_gradient(target, gradient, other, labels, update.protocol).verified


@pytest.mark.parametrize("number", [0, 2])
def test_the_steps_of_a_replay_are_those_of_the_client(number: int) -> None:
    target = wider_target()
    training = FedAvg(steps=3, lr=1e-2, batch=1)
    update = Client(target, fedavg=training).update(TEXTS, LABELS)
    texts = list(zip(ids_of(target), LABELS, strict=True))
    name = target.layers[0].value.weight
    steps = replayed_steps(target, texts, (list(update.tensors), [name]), update.protocol, number)
    assert [list(own) for own in steps.gradients] == [[name]] * 3
    moved = -training.lr * sum(own[name] for own in steps.gradients)
    torch.testing.assert_close(moved, update.tensors[name], atol=1e-7, rtol=1e-3)
    before = target.parameters[name] - training.lr * sum(own[name] for own in steps.gradients[:number])
    torch.testing.assert_close(steps.weights[name], before)


def test_only_local_training_has_steps() -> None:
    with pytest.raises(ValueError, match="local training"):
        replayed_steps(wider_target(), [], ([], []), Update({}, send="bf16").protocol, 0)
