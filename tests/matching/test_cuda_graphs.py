"""Which calls are recorded as CUDA graphs; the recording itself needs a GPU and is replaced here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.matching import cuda_graphs as graphs
from gradleak.matching.cuda_graphs import GraphCache


class Recorder:
    """Stands for `_record`: counts, and replays by calling."""

    def __init__(self) -> None:
        self.recordings = 0
        self.replays = 0
        self.pools: set[object] = set()

    def __call__(self, function: Any, _candidates: Any, pool: Any) -> Any:
        self.recordings += 1
        self.pools.add(pool)

        def replay(candidates: Any) -> Any:
            self.replays += 1
            return function(candidates)

        return SimpleNamespace(replay=replay)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(graphs, "_record", recorder)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    return recorder


def call(cache: GraphCache, kind: int) -> tuple[Tensor, dict[str, Tensor]]:
    candidates: Any = SimpleNamespace(tensors=[torch.ones(2)], mask=SimpleNamespace(device=torch.device("cuda")))
    return cache(kind, lambda _: (torch.tensor(kind), {}), candidates)


def test_the_second_call_of_a_kind_is_recorded_and_later_ones_are_replayed(recorder: Recorder) -> None:
    cache = GraphCache()
    answers = [int(call(cache, kind)[0]) for kind in (1, 1, 1, 2)]
    assert answers == [1, 1, 1, 2]
    assert (recorder.recordings, recorder.replays) == (1, 2)


def test_more_kinds_in_turn_than_are_kept_are_not_recorded_again_and_again(recorder: Recorder) -> None:
    cache, kinds = GraphCache(), graphs.MAX_GRAPHS + 4
    for _ in range(10):
        assert [int(call(cache, kind)[0]) for kind in range(kinds)] == list(range(kinds))
    assert recorder.recordings == kinds
    assert recorder.replays >= 8 * graphs.MAX_GRAPHS


def test_caches_of_one_pool_share_memory_and_give_it_back_together(recorder: Recorder) -> None:
    first = GraphCache()
    second = GraphCache(shares_pool_with=GraphCache(shares_pool_with=first))
    for cache in (first, second):
        assert [int(call(cache, kind)[0]) for kind in (1, 1, 2, 2)] == [1, 1, 2, 2]
    assert (recorder.recordings, len(recorder.pools)) == (4, 1)
    second.clear()
    for cache in (first, second):
        assert [int(call(cache, 1)[0]) for _ in range(2)] == [1, 1]
    assert (recorder.recordings, len(recorder.pools)) == (6, 2)


def test_caches_made_apart_do_not_share_memory(recorder: Recorder) -> None:
    for cache in (GraphCache(), GraphCache()):
        call(cache, 1), call(cache, 1)
    assert len(recorder.pools) == 2
