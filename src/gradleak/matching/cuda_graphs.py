"""CUDA graphs of engine calls that are made again and again.

A pass over a batch of candidates is thousands of small kernels; launching them one by one takes a CPU longer than the
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
MOST_GRAPHS = 16


@dataclass
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: Candidates
    result: Result

    def replay(self, candidates: Candidates) -> Result:
        for fixed, new in zip(self.inputs.tensors, candidates.tensors, strict=True):
            fixed.detach().copy_(new.detach())
        self.graph.replay()
        distances, gradients = self.result
        return distances.clone(), {name: gradient.clone() for name, gradient in gradients.items()}


class _Pool:
    """The memory that the recordings of several caches share."""

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
            cache.forget()


class GraphCache:
    """Runs calls, and from the second call of a kind on replays a recording of it.

    Args:
        beside: another cache, whose recordings never run at the same time: they can use the same memory.
    """

    def __init__(self, beside: GraphCache | None = None) -> None:
        self._pool: _Pool = _Pool() if beside is None else beside._pool
        self._pool.caches.add(self)
        self.forget()

    def forget(self) -> None:
        """Forget all recordings."""
        self._recorded: OrderedDict[Hashable, _Recorded | None] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._dropped: set[Hashable] = set()

    def clear(self) -> None:
        """Forget all recordings, also of the caches beside this, and give their memory back."""
        self._pool.clear()

    def __call__(self, kind: Hashable, function: Function, candidates: Candidates) -> Result:
        """Return `function(candidates)`.

        Args:
            kind: calls of one kind differ only in the values of the candidates' tensors; shapes need not be in it.
            function: must not wait for the device, and must read nothing that changes but the candidates.
            candidates: the call's argument.
        """
        shapes = tuple((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in candidates.tensors)
        key = (kind, shapes, torch.backends.cuda.matmul.allow_tf32)
        if candidates.mask.device.type != "cuda":
            return function(candidates)
        # A call that is made once is not worth a recording; one whose recording had to go would only drive out others,
        # since calls come round in turn.
        if key not in self._seen or key in self._dropped:
            self._seen.add(key)
            return function(candidates)
        if key not in self._recorded:
            # One pool for all recordings: they never run at the same time, and results are copied out at once.
            self._recorded[key] = _record(function, candidates, self._pool.handle)
            while len(self._recorded) > MOST_GRAPHS:
                self._dropped.add(self._recorded.popitem(last=False)[0])
        recorded = self._recorded[key]
        return function(candidates) if recorded is None else recorded.replay(candidates)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Let no old recording be destroyed meanwhile: CUDA refuses that as long as it records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _record(function: Function, candidates: Candidates, pool: Any) -> _Recorded | None:  # noqa: ANN401
    """Record a call; None if it does something that cannot be recorded."""
    inputs = candidates.copy()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            function(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with _nothing_collected(), torch.cuda.graph(graph, pool=pool):
            result = function(inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return _Recorded(graph, inputs, result)
