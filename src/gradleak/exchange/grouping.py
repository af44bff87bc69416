"""Groups of victims that can be computed together: of one key, of similar length, as many as memory has room for.

Used wherever attacks batch over victims, so that all of them group in one way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence


def group_by_key(keys: Iterable[Hashable], most: int | None = None) -> list[list[int]]:
    """Return the indices of equal keys, in the order of their first appearance.

    Args:
        keys: one for each victim.
        most: the most victims in a group; a larger one is cut into several.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    if most is None:
        return list(groups.values())
    return [members[i : i + most] for members in groups.values() for i in range(0, len(members), most)]


def length_class(length: int, limits: Sequence[int]) -> int:
    """Return a number that victims of similar length share: lengths up to each limit fall into one class.

    Few classes keep a GPU busy, many limit padding.
    """
    return bisect_left(limits, length)
