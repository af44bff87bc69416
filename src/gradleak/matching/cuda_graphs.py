"""CUDA graphs of repeated engine calls; `Matcher` runs its scoring and differentiation through a `GraphCache`.

A pass over a batch of candidates is thousands of small kernels; launching them one by one takes the CPU longer than the
GPU needs to run them. Recorded once as a graph, they are launched together.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from gradleak.matching.candidates import Candidates

Result = tuple[Tensor, dict[str, Tensor]]
Function = Callable[[Candidates], Result]
WARM_UP_CALLS = 2
MAX_GRAPHS = 16


@dataclass
class _RecordedGraph:
    """A recorded call with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Candidates
    result: Result

    def replay(self, candidates: Candidates) -> Result:
        for fixed, new in zip(self.inputs.tensors, candidates.tensors, strict=True):
            fixed.detach().copy_(new.detach())
        self.graph.replay()
        distances, gradients = self.result
        return distances.clone(), {name: gradient.clone() for name, gradient in gradients.items()}


class _GraphPool:
    """The memory pool that the recordings of several caches share."""

    def __init__(self) -> None:
        self.caches: WeakSet[GraphCache] = WeakSet()
        self._handle: Any = None

    @property
    def handle(self) -> Any:  # noqa: ANN401
        self._handle = self._handle or torch.cuda.graph_pool_handle()
        return self._handle

    def clear(self) -> None:
        self._handle = None
        for cache in list(self.caches):
            cache.drop()


class GraphCache:
    """Runs calls, and replays a recording from the second call of a kind on.

    Args:
        shares_pool_with: another cache whose memory pool this one uses; their recordings must never run concurrently.
    """

    def __init__(self, shares_pool_with: GraphCache | None = None) -> None:
        self._pool: _GraphPool = _GraphPool() if shares_pool_with is None else shares_pool_with._pool
        self._pool.caches.add(self)
        self.drop()

    def drop(self) -> None:
        """Drop all recordings of this cache."""
        self._recorded: OrderedDict[Hashable, _RecordedGraph | None] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._dropped: set[Hashable] = set()

    def clear(self) -> None:
        """Drop all recordings of all caches of the pool, and free their memory."""
        self._pool.clear()

    def __call__(self, kind: Hashable, function: Function, candidates: Candidates) -> Result:
        """Return `function(candidates)`.

        Args:
            kind: key of the call. Calls of one kind and of the same tensor shapes differ only in the tensors' values.
            function: must not synchronise with the device, nor read anything that changes except the candidates.
            candidates: the call's argument.
        """
        shapes = tuple((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in candidates.tensors)
        key = (kind, shapes, torch.backends.cuda.matmul.allow_tf32)
        if candidates.mask.device.type != "cuda":
            return function(candidates)
        # A single call is not worth a recording. Calls come round in turn: a kind that was evicted once would only
        # evict others if it were recorded again.
        if key not in self._seen or key in self._dropped:
            self._seen.add(key)
            return function(candidates)
        if key not in self._recorded:
            # One pool for all recordings: they never run at the same time, and results are copied out immediately.
            self._recorded[key] = _record(function, candidates, self._pool.handle)
            while len(self._recorded) > MAX_GRAPHS:
                self._dropped.add(self._recorded.popitem(last=False)[0])
        recorded = self._recorded[key]
        return function(candidates) if recorded is None else recorded.replay(candidates)


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: CUDA fails if an old graph is destroyed while another is recorded."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _record(function: Function, candidates: Candidates, pool: Any) -> _RecordedGraph | None:  # noqa: ANN401
    """Record a call; return None if it does something that a graph cannot hold."""
    inputs = candidates.copy()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            function(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with _paused_garbage_collection(), torch.cuda.graph(graph, pool=pool):
            result = function(inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return _RecordedGraph(graph, inputs, result)
