"""How many threads a run is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradleak.exchange import Knowledge
    from gradleak.targets import Target

# Below so many parameters of layers times sequences, matrices are too small to be shared between threads.
SMALL_WORK = 8_000_000


def fitting_threads(target: Target, knowledge: Sequence[Knowledge]) -> AbstractContextManager[None]:
    """Return a context in which an attack has the threads that are of use to it.

    Args:
        target: the model.
        knowledge: what is known of the updates that are attacked together.
    """
    layers = sum(
        parameter.numel() for name, parameter in target.parameters.items() if name not in target.embedding_parameters
    )
    sequences = sum(known.sequences or 1 for known in knowledge)
    small = target.device.type == "cpu" and layers * sequences < SMALL_WORK
    return one_thread() if small else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core: on so small a model threads wait for each other, much longer still on a busy machine.

    And it makes the demo the same everywhere: another number of threads rounds otherwise.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
