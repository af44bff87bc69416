"""From the gradient of a million entries to the features that an inverter reads.

`HashedGradient` is LTI's feature hashing (section 3; Weinberger et al. 2009): every entry falls into a pseudo-random
bin, and a bin's feature is the sum of its entries. It does not depend on the model. `KeptRows` does: it keeps the
gradients that were measured to tell most about the text (`gradleak.inversion.probe`), and drops the others.

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

# Neighbouring entries that are hashed together: as many as a GPU reads from memory at a time.
RUN = 32


class Reduction(ABC):
    """Computes the features of a gradient."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The parameters whose gradients are read."""

    @property
    @abstractmethod
    def features(self) -> int:
        """The number of features."""

    @abstractmethod
    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the features of each example."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a file must hold to build the reduction again; none by default."""
        return {}


class HashedGradient(Reduction):
    """Feature hashing, one parameter after the other, each with its own bins.

    A parameter's entries are taken in n runs of 32 neighbours, or one by one if its size is no multiple of that. Slot j
    of M holds run (a j + b) mod M, and r successive slots share one run of bins. M ≥ n is a multiple of r; a and b come
    from the seed and the parameter's name. This is a permutation cut into pieces (multiply-shift hashing): bins are
    evenly filled, sums have a fixed order (the same in every run), memory is read in long pieces, and no projection is
    stored because indices are computed on the fly.

    Args:
        sizes: number of entries of each parameter, by name.
        share: bins for each entry.
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
        """Return the sums of all bins, parameter by parameter."""
        return torch.cat([self._hash(name, gradients[name].flatten(1)) for name in self.sizes], dim=1)

    def _bins(self, size: int) -> tuple[int, int]:
        """Return the number of runs of bins for a parameter of this size, and the length of a run."""
        wanted = max(1, math.ceil(size * self.share))
        run = RUN if size % RUN == 0 and wanted >= RUN else 1
        return math.ceil(wanted / run), run

    def _hash(self, name: str, entries: Tensor) -> Tensor:
        bins, run = self._bins(entries.shape[1])
        runs = entries.shape[1] // run
        rounds = math.ceil(runs / bins)
        factor, shift = self._coefficients(name, rounds * bins)
        index = (factor * torch.arange(rounds * bins, device=entries.device) + shift) % (rounds * bins)
        moved = entries.view(-1, runs, run).index_select(1, index.clamp(max=runs - 1))
        if rounds * bins > runs:  # the last few slots of the permutation are empty
            moved = torch.where((index < runs)[:, None], moved, 0.0)
        return moved.view(-1, bins, rounds, run).sum(dim=2).flatten(1)

    def _coefficients(self, name: str, slots: int) -> tuple[int, int]:
        """Return the factor a, coprime to the number of slots, and the shift b."""
        stream = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        factor, shift = torch.randint(1, max(2, slots), (2,), generator=stream).tolist()
        while math.gcd(factor, slots) != 1:
            factor += 1
        return factor, shift


class KeptRows(Reduction):
    """Some rows of some parameters' gradients, unchanged.

    Args:
        rows: indices of the rows kept of each parameter, by name (of a vector: of its entries).
        widths: number of entries of a row, by name.
    """

    def __init__(self, rows: Mapping[str, Tensor], widths: Mapping[str, int]) -> None:
        self.rows, self.widths = dict(rows), dict(widths)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters of which any row is kept."""
        return tuple(self.rows)

    @property
    def features(self) -> int:
        """The number of entries kept."""
        return sum(len(rows) * self.widths[name] for name, rows in self.rows.items())

    def __call__(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the entries of the kept rows."""
        return torch.cat(
            [
                gradients[name].index_select(1, rows.to(gradients[name].device)).flatten(1)
                for name, rows in self.rows.items()
            ],
            dim=1,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the indices of the rows."""
        return {f"rows.{name}": rows for name, rows in self.rows.items()}
