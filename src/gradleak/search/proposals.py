"""The interface between annealing and the moves it makes: proposals computed from uniform random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Propose(Protocol):
    """Propose changes of states, for many problems and many starts of each at once."""

    @property
    def numbers(self) -> int | Sequence[int]:
        """How many random numbers a proposal needs, for all problems alike or for each problem."""
        ...

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        """Return proposals `[problems, starts, tries, length]`.

        Args:
            states: the present states `[problems, starts, length]`.
            numbers: uniform random numbers `[problems, starts, tries, numbers]`; a problem that needs fewer has zeros
                after its own.
            heat: the temperature as a share of the first one, from 1 to 0.
        """
        ...


class ProposeForOne(Propose, Protocol):
    """Propose changes for one problem with one try: `[1, starts, length]` gives `[1, starts, 1, length]`."""

    @property
    def numbers(self) -> int:
        """How many random numbers a proposal needs."""
        ...
