"""A proof must never be wrong: everything that nearly reproduces an update is refused."""

from __future__ import annotations

import pytest
import torch
from sieve_tools import LABELS, ids_of, sent, wider_target

from gradleak.attacks.sieve.labels import read_labels
from gradleak.attacks.sieve.subspace import Subspace
from gradleak.attacks.sieve.verify import certain, reproduces, unexplained

every_family = pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "gpt2"])


@every_family
def test_the_true_batch_is_proven_and_near_misses_are_not(family: str) -> None:
    target = wider_target(family)
    gradient = sent(target).tensors
    batch = ids_of(target)
    assert reproduces(target, gradient, batch, LABELS)
    assert reproduces(target, gradient, batch[::-1], LABELS[::-1])
    for number, ids in enumerate(batch):
        for place in range(1, len(ids) - 1):
            changed = [*batch]
            changed[number] = (*ids[:place], ids[place] % 30 + 6, *ids[place + 1 :])
            assert not reproduces(target, gradient, changed, LABELS)
            swapped = [*batch]
            swapped[number] = (*ids[: place - 1], ids[place], ids[place - 1], *ids[place + 1 :])
            assert not reproduces(target, gradient, swapped, LABELS)
    assert not reproduces(target, gradient, batch, [0, *LABELS[1:]])
    assert not reproduces(target, gradient, batch[1:], LABELS[1:])
    assert not reproduces(target, gradient, [*batch, batch[0]], [*LABELS, LABELS[0]])
    assert not reproduces(target, gradient, [], [])


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

    assert certain(space(200), 0.1, 30_000, 1e-4)
    assert not certain(space(375), 0.1, 30_000, 1e-4)
