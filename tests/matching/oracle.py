"""The slow and obvious way: one candidate, one backward pass, distances written out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.matching import L1, L2, L2L1, Candidates, Cosine, Distance, SquaredL2, WrongSign, autograd_gradients
from gradleak.targets import Target


def oracle(
    target: Target, observed: list[Mapping[str, Tensor]], distance: Distance, candidates: Candidates, names: list[str]
) -> Tensor:
    """Return the distances `[victims, candidates]`, tensor by tensor and entry by entry."""
    return distances_of(autograd_gradients(target, candidates, names), observed, distance)


def distances_of(gradients: Mapping[str, Tensor], observed: list[Mapping[str, Tensor]], distance: Distance) -> Tensor:
    """Return the distances of gradients `[victims, candidates, *shape]` that autograd gave."""
    victims, count = next(iter(gradients.values())).shape[:2]
    rows = [
        torch.stack(
            [_distance({k: g[v, n] for k, g in gradients.items()}, observed[v], distance) for n in range(count)]
        )
        for v in range(victims)
    ]
    return torch.stack(rows)


def _distance(candidate: dict[str, Tensor], observed: Mapping[str, Tensor], distance: Distance) -> Tensor:
    # As the engine says it: a tensor below 1e-6 of the largest one's norm is rounding noise.
    largest = max(observed[name].norm() for name in candidate)
    candidate = {name: value for name, value in candidate.items() if observed[name].norm() > 1e-6 * largest}
    if distance.kept_only:
        candidate = {name: torch.where(observed[name] == 0, 0.0, value) for name, value in candidate.items()}
    if distance.normalised:
        own = torch.sqrt(sum((value**2).sum() for value in candidate.values()))
        wanted = torch.sqrt(sum((observed[name] ** 2).sum() for name in candidate))
        candidate = {name: value * wanted / own for name, value in candidate.items()}
    terms = torch.stack([_term(value, observed[name], distance) for name, value in candidate.items()])
    return 1 - terms.mean() if isinstance(distance, Cosine) else terms.sum()


def _term(candidate: Tensor, observed: Tensor, distance: Distance) -> Tensor:
    difference = candidate - observed
    if isinstance(distance, SquaredL2):
        return (difference**2).sum()
    if isinstance(distance, L2):
        return torch.sqrt((difference**2).sum())
    if isinstance(distance, L1):
        return difference.abs().sum()
    if isinstance(distance, L2L1):
        second = (difference**2).sum()
        return (second if distance.squared else torch.sqrt(second)) + distance.alpha * difference.abs().sum()
    if isinstance(distance, Cosine):
        return (candidate * observed).sum() / (candidate.norm() * observed.norm()).clamp(min=1e-30)
    assert isinstance(distance, WrongSign)
    wrong = torch.relu(-candidate * torch.sign(observed))
    return (wrong**2).sum() + distance.alpha * wrong.sum()
