"""Batches under dropout that fill most of the space."""

from __future__ import annotations

import random

import pytest
import torch

from gradleak.attacks import Sieve
from gradleak.attacks.sieve.dropout import reader
from gradleak.attacks.sieve.dropout.row_search import RowSearch
from gradleak.attacks.sieve.dropout.rows import InputRows
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.exchange import Progress
from gradleak.federation import Client
from gradleak.leakage.dropout import dropout_is_off
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.row_space import row_space
from gradleak.targets import load_target
from wide_targets import ids_of, sent, wider_target

WORDS = ["the", "cat", "sat", "on", "a", "mat", "big", "red", "dog", "ran"]
CROWD = [" ".join(random.Random(n).choices(WORDS, k=6)) for n in range(8)]
"""64 tokens in 96 dimensions, most of them several times at the same position."""


def test_a_crowded_batch_is_read_exactly_and_only_by_taking_sentences_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = wider_target()
    update = sent(target, CROWD, [0, 1] * 4, dropout=True)
    result = Sieve()(target, update)
    assert sorted(result.token_ids) == sorted(ids_of(target, CROWD))
    assert result.verified
    monkeypatch.setattr(reader, "without_sentences", lambda *_: (None, []))
    assert not Sieve()(target, update).verified


@pytest.mark.parametrize("text", ["I wonder who Bill saw and liked Mary.", "The unidentified victim was struck."])
def test_rounding_that_is_larger_in_some_rows_of_a_short_sentence_hides_none_of_them(text: str) -> None:
    tiny = load_target("tiny")
    update = Client(tiny, dropout=True, send="bf16").update([text], [0])
    result = Sieve()(tiny, update)
    assert result.verified
    assert list(map(list, result.token_ids)) == tiny.encode([text]).ids.tolist()


def test_a_clock_can_end_the_search_for_rows() -> None:
    class EnoughError(Exception):
        pass

    def stop(progress: Progress) -> None:
        assert progress.texts
        raise EnoughError

    target = wider_target()
    with pytest.raises(EnoughError):
        Sieve()(target, sent(target, CROWD, [0, 1] * 4, dropout=True), listener=stop)


def test_many_masks_of_one_token_are_not_taken_for_no_dropout() -> None:
    target = wider_target()
    inputs = first_layer_inputs(target)
    start = inputs(torch.tensor(target.special_tokens[0][:1]), torch.zeros(1, dtype=torch.long))
    masks = torch.rand(75, inputs.width, generator=torch.Generator().manual_seed(0)) > 0.1
    assert dropout_is_off(target, inputs, row_space([start]))
    assert not dropout_is_off(target, inputs, row_space([start * masks]))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "gpt2"])
@pytest.mark.parametrize("num_labels", [2, 4])
def test_labels_are_read_under_dropout(family: str, num_labels: int) -> None:
    target = wider_target(family, num_labels=num_labels)
    labels = [num_labels - 1, 0, 1]
    result = Sieve()(target, sent(target, labels=labels, dropout=True, seed=2))
    assert [result.labels[result.token_ids.index(ids)] for ids in ids_of(target)] == labels


def test_rows_are_chosen_and_joined_in_order() -> None:
    inputs = first_layer_inputs(wider_target())
    masks = [torch.rand(inputs.width, generator=torch.Generator().manual_seed(n)) > 0.1 for n in range(3)]
    rows = InputRows([7, 8, 9], [0, 1, 2], masks)
    assert rows.select({2, 0}).tokens == [7, 9]
    assert InputRows().joined(rows.select([1])).vectors(inputs).equal(rows.vectors(inputs)[1:2])
    assert InputRows().vectors(inputs).shape == (0, inputs.width)


def test_more_rows_than_dimensions_leave_none_missing() -> None:
    target = wider_target()
    inputs = first_layer_inputs(target)
    gradient = {part.weight: inputs(torch.tensor([5]), torch.tensor([0])) for part in inputs.maps}
    observed = ObservedUpdate(target, inputs, gradient, torch.tensor([5, 6]), 8)
    mask = torch.ones(inputs.width, dtype=torch.bool)
    rows = InputRows([5, 6], [0, 1], [mask, mask])
    assert observed.space.rank == 1
    assert RowSearch(observed, observed.space, 1, rows).missing == 0
