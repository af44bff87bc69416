"""Groups of victims that are attacked together: of similar length, and as many as memory has room for. Used by EDR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gradleak.exchange import group_by_key, length_class
from gradleak.matching import free_bytes
from gradleak.targets import Target

# Victims of lengths up to each of these are attacked together: few groups keep a GPU busy, many avoid padding.
LENGTH_LIMITS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
# On a CPU victims are attacked one after the other: retiring one would copy the gradients of all the others.
ONE_BY_ONE = frozenset({"cpu"})
COPIES = 40  # a victim needs memory for so many copies of its gradient


def attacked_together(target: Target) -> bool:
    """Return whether victims are attacked together on the target's device."""
    return target.device.type not in ONE_BY_ONE


def group_by_length(target: Target, lengths: Sequence[int], gradient: Mapping[str, Tensor]) -> list[list[int]]:
    """Return the indices of the victims of each group.

    Args:
        target: the model.
        lengths: the length of each victim's longest sequence.
        gradient: the gradient of one of the victims, for its size.
    """
    if not attacked_together(target):
        return [[number] for number in range(len(lengths))]
    size = sum(tensor.nbytes for tensor in gradient.values())
    most = max(1, free_bytes(target.device) // (COPIES * size))
    return group_by_key((length_class(length, LENGTH_LIMITS) for length in lengths), most)
