"""Which calls are recorded as CUDA graphs; the recording itself needs a GPU and is replaced here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.matching import graphs
from gradleak.matching.graphs import GraphCache


class Recorder:
    """Stands for `_record`: counts, and replays by calling."""

    def __init__(self) -> None:
        self.recordings = 0
        self.replays = 0

    def __call__(self, function: Any, _candidates: Any, _pool: Any) -> Any:
        self.recordings += 1

        def replay(candidates: Any) -> Any:
            self.replays += 1
            return function(candidates)

        return SimpleNamespace(replay=replay)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(graphs, "_record", recorder)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
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
    cache, kinds = GraphCache(), graphs.MOST_GRAPHS + 4
    for _ in range(10):
        assert [int(call(cache, kind)[0]) for kind in range(kinds)] == list(range(kinds))
    assert recorder.recordings == kinds
    assert recorder.replays >= 8 * graphs.MOST_GRAPHS
