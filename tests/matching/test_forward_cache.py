"""The forward cache runs each distinct sequence once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradleak.matching import forward_cache
from gradleak.matching.forward_cache import ForwardCache


class Model:
    """Gives each sequence its sum and its length, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        self.asked += [tuple(row[kept].tolist()) for row, kept in zip(ids, mask, strict=True)]
        return torch.stack([(ids * mask).sum(dim=1), mask.sum(dim=1)], dim=1).double()


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 3, (count, 4), generator=stream)
    return ids, torch.arange(4) < torch.randint(1, 5, (count, 1), generator=stream)


def test_rows_are_those_of_the_model_and_each_sequence_is_asked_for_once() -> None:
    model, plain = Model(), Model()
    remembered = ForwardCache(model)
    for seed in range(5):
        ids, mask = drawn(40, seed)
        assert torch.equal(remembered(ids, mask), plain(ids, mask))
    assert len(model.asked) == len(set(model.asked))
    assert set(model.asked) == set(plain.asked)


def test_those_that_run_together_come_in_order_of_their_length() -> None:
    model = Model()
    ForwardCache(model)(*drawn(40, 0))
    lengths = list(map(len, model.asked))
    assert lengths == sorted(lengths)


def test_padding_does_not_matter() -> None:
    model = Model()
    remembered = ForwardCache(model)
    ids, mask = torch.tensor([[5, 6, 0], [5, 6, 7]]), torch.tensor([[True, True, False]] * 2)
    assert remembered(ids, mask).tolist() == [[11, 2], [11, 2]]
    assert remembered(ids[:, :2], mask[:, :2]).tolist() == [[11, 2], [11, 2]]
    assert model.asked == [(5, 6)]


def test_what_takes_too_much_room_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_cache, "MAX_CACHE_BYTES", 100)
    model, plain = Model(), Model()
    remembered = ForwardCache(model)
    for seed in (0, 1, 0):
        ids, mask = drawn(30, seed)
        assert torch.equal(remembered(ids, mask), plain(ids, mask))
    assert len(model.asked) > len(set(model.asked))
