"""How many candidates one pass of a `Matcher` takes: as many as fit the device, measured on one, and the deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.targets import Target

# Peak memory of a pass relative to what its graph saves: gradients in flight and temporary copies come on top.
PEAK_OVER_SAVED = 3.0
SHARE_OF_FREE_MEMORY = 0.5
# More tokens in a pass are no faster once the matrix units are busy, and spoil a CPU's cache.
MAX_TOKENS_PER_PASS = {"cpu": 4_096, "cuda": 262_144}
# Tokens times parameters of a pass that takes a fraction of a second: the deadline is checked between passes.
QUICK_PASS = {"cpu": 4e9, "cuda": 4e12}


def free_bytes(device: torch.device) -> int:
    """Return the memory still available on a device, within the share of it that this process may use."""
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        taken, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        allowed = torch.cuda.get_per_process_memory_fraction(device) * whole
        return int(min(free + taken - used, allowed - used))
    return min(_available_memory(), _control_group_memory())


def saved_bytes(run: Callable[[], Any], resident: Iterable[Tensor]) -> int:
    """Return the bytes that autograd saves while `run` builds its graph, each storage counted once.

    Args:
        run: builds the graph.
        resident: tensors in memory whatever the number of candidates; they are not counted.
    """
    ignored = {tensor.untyped_storage().data_ptr() for tensor in resident}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(size for pointer, size in seen.items() if pointer not in ignored)


def candidates_at_once(device: torch.device, bytes_each: float, tokens_each: int) -> int:
    """Return how many candidates a pass should take: no more than fit the device, and no more than make it faster.

    Args:
        device: where the pass runs.
        bytes_each: memory that autograd saves for a candidate.
        tokens_each: tokens of a candidate.
    """
    fitting = free_bytes(device) * SHARE_OF_FREE_MEMORY / max(bytes_each * PEAK_OVER_SAVED, 1.0)
    useful = MAX_TOKENS_PER_PASS.get(device.type, MAX_TOKENS_PER_PASS["cuda"]) / tokens_each
    return max(1, int(min(fitting, useful)))


def candidates_in_quick_pass(target: Target, tokens_each: int) -> int:
    """Return how many candidates of `tokens_each` tokens a pass of a fraction of a second can take."""
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
    """Return the memory left under a container's limit; a very large number without a limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return int(limit) - int(used) if limit != "max" else 1 << 62
    except (OSError, ValueError):
        return 1 << 62
