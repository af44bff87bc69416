"""How many tokens an update can hold and still be read, and which limit a batch exceeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.attacks.forest.sites import InputSite
from gradleak.targets import Target


@dataclass(frozen=True)
class Capacity:
    """The limits of an update.

    Attributes:
        width: dimensions of a layer's input, d: no method here reads more tokens than that.
        rows: rows that a layer's maps give: rank × adapted matrices, or all outputs of a full update.
        layers: how many inputs of layers were compared.
        first_round: whether B is still zero, so that only B's gradient tells.
        dropout: the rate of the adapters' own dropout; 0 for none.
    """

    width: int
    rows: int
    layers: int
    first_round: bool
    dropout: float = 0.0

    @classmethod
    def of(cls, target: Target, sites: Sequence[InputSite]) -> Capacity:
        """Return the limits of an update with these sites of its first layer."""
        first = sites[0]
        small = first.reduction is not None
        rate = max((module.dropout for module in target.adapters), default=0.0)
        return cls(first.width, first.width if small else first.height, len(sites), small, rate)

    @property
    def _masked(self) -> str:
        """What is to be said of the adapters' dropout where nothing was told."""
        if not self.dropout:
            return ""
        return (
            f", or the client trained with the adapters' dropout (rate {self.dropout:g}), whose masks are not decoded: "
            "no token then fits the rows exactly"
        )

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
            return f"{limit}; the update holds more tokens than can be told from it (at most {beyond}){self._masked}"
        exceeded = [f"the {self.rows} rows"] if tokens > self.rows else []
        exceeded += [f"the {self.width} dimensions"] if tokens >= self.width else []
        what = f"; more than {' and '.join(exceeded)}" if exceeded else ", below both limits"
        return f"{limit}; {tokens} tokens were found{what}"
