"""From a gradient of a million numbers to the features that an inverter reads.

`Hashed` is LTI's feature hashing (section 3; Weinberger et al. 2009): every entry falls into a pseudo-random bin, and a
bin is the sum of its entries. It knows nothing of the model. `Kept` does: it keeps the parameters whose gradients were
measured to say most about the text, as they are, and leaves out the rest.

Gradients come by name as `[examples, *shape]`; features are `[examples, features]`.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

# Entries that are hashed together: as much memory as a GPU reads at a time.
RUN = 32


class Reduction(ABC):
    """What of a gradient an inverter looks at."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The parameters whose gradients are read."""

    @property
    @abstractmethod
    def features(self) -> int:
        """How many features there are."""

    @abstractmethod
    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the features of each example."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what a file must hold to build the reduction again, beside the sizes of the parameters."""
        return {}


class Hashed(Reduction):
    """Feature hashing, parameter by parameter: each has its own share of the bins.

    A parameter's entries are taken in n runs of 32 neighbours, or one by one where that does not come out even. Place j
    of M holds run (a j + b) mod M, and r places in a row fall into one run of bins; M ≥ n is a multiple of r, and a
    and b come from the seed and the parameter's name. That is a permutation cut into pieces (multiply-shift hashing):
    bins are even, sums are made in a fixed order (the same on every run), memory is read in long pieces, and no
    projection is stored, because indices are computed on the way.

    Args:
        sizes: how many entries each parameter has, by name.
        share: how many bins there are for an entry.
        seed: seed of the hash.
    """

    def __init__(self, sizes: Mapping[str, int], share: float, seed: int = 0) -> None:
        self.sizes, self.share, self.seed = dict(sizes), share, seed

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters."""
        return tuple(self.sizes)

    @cached_property
    def features(self) -> int:
        """The number of bins."""
        return sum(math.prod(self._bins(size)) for size in self.sizes.values())

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Hash one parameter after the other."""
        return torch.cat([self._hash(name, gradients[name].flatten(1)) for name in self.sizes], dim=1)

    def _bins(self, size: int) -> tuple[int, int]:
        """Return how many runs of bins a parameter of this size gets, and how long a run is."""
        wanted = max(1, math.ceil(size * self.share))
        run = RUN if size % RUN == 0 and wanted >= RUN else 1
        return math.ceil(wanted / run), run

    def _hash(self, name: str, entries: Tensor) -> Tensor:
        bins, run = self._bins(entries.shape[1])
        runs = entries.shape[1] // run
        rounds = math.ceil(runs / bins)
        factor, shift = self._numbers(name, rounds * bins)
        index = (factor * torch.arange(rounds * bins, device=entries.device) + shift) % (rounds * bins)
        there = (index < runs)[:, None]  # the permutation's last few places may hold nothing
        moved = entries.view(-1, runs, run).index_select(1, index.clamp(max=runs - 1))
        if rounds * bins > runs:
            moved = torch.where(there, moved, 0.0)
        return moved.view(-1, bins, rounds, run).sum(dim=2).flatten(1)

    def _numbers(self, name: str, whole: int) -> tuple[int, int]:
        """Return the factor, which has no divisor in common with `whole`, and the shift."""
        stream = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        factor, shift = torch.randint(1, max(2, whole), (2,), generator=stream).tolist()
        while math.gcd(factor, whole) != 1:
            factor += 1
        return factor, shift


class Kept(Reduction):
    """Some rows of some parameters, as they are.

    Args:
        rows: numbers of the rows kept of each parameter, by name (of a vector: of its entries).
        widths: how many entries a row has, by name.
    """

    def __init__(self, rows: Mapping[str, Tensor], widths: Mapping[str, int]) -> None:
        self.rows, self.widths = dict(rows), dict(widths)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters of which anything is kept."""
        return tuple(self.rows)

    @property
    def features(self) -> int:
        """The number of entries kept."""
        return sum(len(rows) * self.widths[name] for name, rows in self.rows.items())

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Read the rows."""
        return torch.cat(
            [
                gradients[name].index_select(1, rows.to(gradients[name].device)).flatten(1)
                for name, rows in self.rows.items()
            ],
            dim=1,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The rows."""
        return {f"rows.{name}": rows for name, rows in self.rows.items()}
