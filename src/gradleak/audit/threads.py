"""How many CPU threads an attack can use. Small models run faster on one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.exchange import Knowledge
    from gradleak.targets import Target

# Below this product of layer parameters and sequences, matrices are too small to be divided between threads.
SMALL_WORK = 8_000_000


def fitting_threads(target: Target, knowledge: Sequence[Knowledge]) -> AbstractContextManager[None]:
    """Return a context that limits small work to one thread and leaves the number unchanged for larger work.

    Args:
        target: the model.
        knowledge: the attacker's knowledge of the updates that are attacked together.
    """
    sequences = sum(known.sequences or 1 for known in knowledge)
    return one_thread() if is_small(target, sequences) else nullcontext()


def is_small(target: Target, sequences: int = 1) -> bool:
    """Return whether so many sequences of a model on the CPU are too little work for several threads."""
    layers = sum(
        parameter.numel() for name, parameter in target.parameters.items() if name not in target.embedding_parameters
    )
    return target.device.type == "cpu" and layers * sequences < SMALL_WORK


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the context.

    On a small model threads spend most of their time waiting for each other, above all on a busy machine. One thread
    also makes the demo reproducible: the rounding of sums depends on the number of threads.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
