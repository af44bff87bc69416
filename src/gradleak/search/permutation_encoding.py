"""Token sequences with repetitions as permutations: chromosomes with connectors (FET, section 4.2 and figure 2).

A solution names one of m different tokens for each of n places. Its chromosome lists the places token by token, in the
order of the tokens, with a connector between two places of the same token:

    places      0    1    2    3    4            tokens      the  cat  saw  dog
    solution    the  cat  saw  the  dog          chromosome  0 + 3   1   2   4        (+ is a connector)

There are n − m connectors, numbered from n. A chromosome is therefore a permutation of 2n − m numbers: operators on
permutations apply, and each token occurs somewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor


def encode(solutions: Tensor) -> Tensor:
    """Return the chromosomes `[count, 2n − m]` of solutions `[count, n]` that hold each of the tokens 0 to m − 1."""
    count, places = solutions.shape
    kinds, order = solutions.sort(dim=1, stable=True)
    joined = torch.zeros_like(kinds, dtype=torch.bool)
    joined[:, 1:] = kinds[:, 1:] == kinds[:, :-1]
    connectors = joined.cumsum(dim=1)
    total = 2 * places - int(kinds[:, -1].max()) - 1
    chromosomes = torch.empty(count, total, dtype=torch.long)
    at = torch.arange(places) + connectors
    chromosomes.scatter_(1, at, order)
    row, _ = joined.nonzero(as_tuple=True)
    chromosomes[row, at[joined] - 1] = places + connectors[joined] - 1
    return chromosomes


def decode(chromosomes: Tensor, places: int) -> Tensor:
    """Return the solutions `[count, n]` of chromosomes, which may be any permutations.

    Crossover and mutation can put connectors side by side or at an end, where they join nothing. Such a connector joins
    the next two places that are not joined yet instead, beginning again at the first after the end. (The paper does not
    say what happens to it.)
    """
    is_place = chromosomes < places
    order = chromosomes[is_place].view(-1, places)
    before = is_place.cumsum(dim=1)[~is_place].view(len(chromosomes), -1)  # places before each connector
    gaps = torch.arange(places - 1)
    joined = torch.zeros(len(chromosomes), places - 1, dtype=torch.bool)
    for column in before.T:
        wanted = (column - 1).clamp(min=0)
        steps = (gaps - wanted[:, None]) % (places - 1) + places * joined
        joined.scatter_(1, steps.argmin(dim=1, keepdim=True), True)
    kinds = torch.cat([torch.zeros(len(order), 1, dtype=torch.long), (~joined).cumsum(dim=1)], dim=1)
    return torch.empty_like(order).scatter_(1, order, kinds)
