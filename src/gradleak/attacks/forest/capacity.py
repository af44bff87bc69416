"""How many tokens an update can hold and still be read, and which limit a batch exceeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.attacks.forest.sites import InputSite


@dataclass(frozen=True)
class Capacity:
    """The limits of an update.

    Attributes:
        width: dimensions of a layer's input, d: no method here reads more tokens than that.
        rows: rows that a layer's maps give: rank × adapted matrices, or all outputs of a full update.
        layers: how many inputs of layers were compared.
        first_round: whether B is still zero, so that only B's gradient tells.
    """

    width: int
    rows: int
    layers: int
    first_round: bool

    @classmethod
    def of(cls, sites: Sequence[InputSite]) -> Capacity:
        """Return the limits of an update with these sites."""
        first = sites[0]
        small = first.reduction is not None
        return cls(first.width, first.width if small else first.height, len(sites), small)

    def line(self, tokens: int | None) -> str:
        """Return the capacity as a note.

        Args:
            tokens: the tokens that were found to leave a row; None if they could not be told.
        """
        if self.first_round:
            limit = f"capacity: first round, B = 0: fewer tokens than the rank {self.rows} can be read"
        else:
            limit = (
                f"capacity: fewer tokens than the {self.width} dimensions of a layer's input can be read; "
                f"a layer gives {self.rows} rows"
            )
        if tokens is None:
            beyond = f"the rank {self.rows}" if self.first_round else f"{self.width} dimensions"
            return f"{limit}; the update holds more tokens than can be told from it (at most {beyond})"
        exceeded = [f"the {self.rows} rows"] if tokens > self.rows else []
        exceeded += [f"the {self.width} dimensions"] if tokens >= self.width else []
        what = f"; more than {' and '.join(exceeded)}" if exceeded else ", below both limits"
        return f"{limit}; {tokens} tokens were found{what}"
