"""How many candidates fit on the device at once, found by measuring one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.targets import Target

# Peak memory of a pass over what its graph saves: gradients in flight and temporary copies come on top.
PEAK_OVER_SAVED = 3.0
SHARE_OF_FREE_MEMORY = 0.5
# More tokens at once make no processor faster once its matrix units are busy, and spoil a CPU's cache.
MOST_TOKENS = {"cpu": 4_096, "cuda": 262_144}
# Tokens times parameters of a pass that takes a fraction of a second, so that a deadline can be asked between passes.
QUICK_PASS = {"cpu": 4e9, "cuda": 4e12}


def free_bytes(device: torch.device) -> int:
    """Return how much memory may still be taken on a device, within the share of it that this process may have."""
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        taken, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        allowed = torch.cuda.get_per_process_memory_fraction(device) * whole
        return int(min(free + taken - used, allowed - used))
    return min(_available_memory(), _control_group_memory())


def saved_bytes(run: Callable[[], Any], standing: Iterable[Tensor]) -> int:
    """Return the bytes that autograd keeps while `run` builds its graph, each storage counted once.

    Args:
        run: builds the graph.
        standing: tensors that are there anyway, however many candidates there are; they are not counted.
    """
    ignored = {tensor.untyped_storage().data_ptr() for tensor in standing}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(size for pointer, size in seen.items() if pointer not in ignored)


def candidates_at_once(device: torch.device, bytes_each: float, tokens_each: int) -> int:
    """Return how many candidates a pass should take."""
    fitting = free_bytes(device) * SHARE_OF_FREE_MEMORY / max(bytes_each * PEAK_OVER_SAVED, 1.0)
    useful = MOST_TOKENS.get(device.type, MOST_TOKENS["cuda"]) / tokens_each
    return max(1, int(min(fitting, useful)))


def candidates_in_a_moment(target: Target, tokens_each: int) -> int:
    """Return how many candidates a pass may take that ends soon."""
    used = target.parameters.keys() - target.embedding_parameters
    size = sum(target.parameters[name].numel() for name in used)
    if target.task == "causal-lm":
        size += target.word_embeddings.numel()
    return max(1, int(QUICK_PASS.get(target.device.type, QUICK_PASS["cuda"]) / (size * tokens_each)))


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: assume a small machine
        return 4 << 30


def _control_group_memory() -> int:
    """Return what a container's limit leaves, without a limit a very large number."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return int(limit) - int(used) if limit != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62
