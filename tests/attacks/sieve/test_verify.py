"""A proof must never be wrong: everything that nearly reproduces an update is refused."""

from __future__ import annotations

import pytest
import torch
from sieve_tools import LABELS, TEXTS, ids_of, sent, wider_target

from gradleak.attacks.sieve.labels import read_labels
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.attacks.sieve.verify import by_whole_gradient, surplus, unexplained
from gradleak.federation import Client

every_family = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "gpt2"])


@every_family
def test_the_true_batch_is_proven_and_near_misses_are_not(family: str) -> None:
    target = wider_target(family)
    gradient = sent(target).tensors
    batch = ids_of(target)

    def verified(sentences: list[tuple[int, ...]], labels: list[int]) -> bool:
        return by_whole_gradient(target, gradient, sentences, labels).verified

    for order in (1, -1):
        proof = by_whole_gradient(target, gradient, batch[::order], LABELS[::order])
        assert proof.verified
        assert proof.complete
        assert proof.labels_verified
        assert "whole gradient" in proof.evidence[0]
    for number, ids in enumerate(batch):
        for place in range(1, len(ids) - 1):
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
    proof = by_whole_gradient(target, scaled, batch, LABELS)
    assert proof.verified
    assert not proof.complete
    assert not proof.labels_verified
    assert "40 % of a batch's weight" in proof.evidence[1]
    reverse = {name: -tensor for name, tensor in scaled.items()}
    assert not by_whole_gradient(target, reverse, batch, LABELS).verified


def test_texts_are_counted_by_their_weights() -> None:
    target = wider_target("bert")
    texts = [TEXTS[0], TEXTS[0], TEXTS[1]]
    gradient = Client(target).update(texts, labels=[0, 0, 1]).tensors
    proof = by_whole_gradient(target, gradient, ids_of(target)[:2], [0, 1])
    assert proof.verified
    assert proof.complete
    assert proof.counts == (2, 1)
    assert "the texts weigh 2, 1: some occur more often, or in smaller batches" in proof.evidence


@every_family
@pytest.mark.parametrize("num_labels", [2, 5])
def test_labels_are_read_in_closed_form(family: str, num_labels: int) -> None:
    target = wider_target(family, num_labels=num_labels)
    labels = [num_labels - 1, 0, 1]
    assert read_labels(target, sent(target, labels=labels).tensors, ids_of(target)) == labels


def test_a_missing_row_leaves_something_unexplained() -> None:
    rows = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    gradient = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)) @ rows
    assert unexplained(gradient, rows) < 1e-6
    assert unexplained(gradient, rows[1:]) > 1e-2


def test_chance_is_ruled_out_only_where_enough_equations_are_left() -> None:
    def space(rank: int) -> Subspace:
        return Subspace(torch.eye(384, dtype=torch.float64)[:, :rank], torch.ones(384))

    assert surplus(space(200), 0.1, 30_000, 1e-4) == pytest.approx(200 * 170, rel=0.05)
    assert surplus(space(375), 0.1, 30_000, 1e-4) is None
