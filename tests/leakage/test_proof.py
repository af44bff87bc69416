"""A proof must never be wrong: everything that nearly reproduces an update is refused."""

from __future__ import annotations

import pytest

from gradleak.federation import Client, FedAvg
from gradleak.leakage.first_step import as_gradient
from gradleak.leakage.proof import TOO_MANY, Proof, prove_by_whole_gradient
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target

every_family = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "gpt2"])


@every_family
def test_the_true_batch_is_proven_and_near_misses_are_not(family: str) -> None:
    target = wider_target(family)
    gradient = sent(target).tensors
    batch = ids_of(target)

    def verified(sentences: list[tuple[int, ...]], labels: list[int]) -> bool:
        return prove_by_whole_gradient(target, gradient, sentences, labels).verified

    for order in (1, -1):
        proof = prove_by_whole_gradient(target, gradient, batch[::order], LABELS[::order])
        assert proof.verified
        assert proof.complete
        assert proof.labels_verified
        assert "whole gradient" in proof.evidence[0]
    each = 1 if family == "bert" else 3  # every place of one family, some of the others
    for number, ids in enumerate(batch):
        for place in range(1, len(ids) - 1, each):
            changed = [*batch]
            changed[number] = (*ids[:place], ids[place] % 30 + 6, *ids[place + 1 :])
            assert not verified(changed, LABELS)
            swapped = [*batch]
            swapped[number] = (*ids[: place - 1], ids[place], ids[place - 1], *ids[place + 1 :])
            assert not verified(swapped, LABELS)
    assert not verified(batch, [0, *LABELS[1:]])
    assert not verified(batch[1:], LABELS[1:])
    assert not verified([], [])


def test_texts_that_a_scaled_update_holds_are_proven_and_that_there_were_no_others_is_not() -> None:
    target = wider_target("bert")
    batch = ids_of(target)
    scaled = {name: 0.4 * tensor for name, tensor in sent(target).tensors.items()}
    proof = prove_by_whole_gradient(target, scaled, batch, LABELS)
    assert proof.verified
    assert not proof.complete
    assert not proof.labels_verified
    assert "40 % of a batch's weight" in proof.evidence[1]
    reverse = {name: -tensor for name, tensor in scaled.items()}
    assert not prove_by_whole_gradient(target, reverse, batch, LABELS).verified


def test_texts_are_counted_by_their_weights() -> None:
    target = wider_target("bert")
    texts = [TEXTS[0], TEXTS[0], TEXTS[1]]
    gradient = Client(target).update(texts, labels=[0, 0, 1]).tensors
    proof = prove_by_whole_gradient(target, gradient, ids_of(target)[:2], [0, 1])
    assert proof.verified
    assert proof.complete
    assert proof.counts == (2, 1)
    assert "the texts weigh 2, 1: some occur more often, or in smaller batches" in proof.evidence


@pytest.mark.parametrize("training", [FedAvg(steps=1, lr=0.01, batch=2), FedAvg(steps=2, lr=0.01, batch=1)])
def test_texts_that_no_step_takes_are_not_proven_by_a_replay(training: FedAvg) -> None:
    target = wider_target("bert")
    update = Client(target, fedavg=training).update(TEXTS, LABELS)
    gradient = as_gradient(target, update)
    taken = ids_of(target)[:2]

    def proof(texts: list[tuple[int, ...]]) -> Proof:
        return prove_by_whole_gradient(target, gradient, texts, LABELS[: len(texts)], update.protocol)

    assert proof(taken).verified
    more = proof([*taken, (*taken[0][:-2], taken[0][-1])])
    assert not more.verified
    assert more.evidence == (TOO_MANY,)
