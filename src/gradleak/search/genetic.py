"""Genetic search over permutations: selection, crossover and mutation of a whole population at once. Used by FET.

A chromosome is a permutation of 0, 1, …, length − 1. The operators apply DEAP's `selTournament`,
`cxUniformPartialyMatched` and `mutShuffleIndexes` to all rows of a tensor: gene after gene, as each exchange depends on
those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.search.control import Score, SearchControl


@dataclass(frozen=True, kw_only=True)
class Evolution:
    """How a population evolves.

    Attributes:
        population: chromosomes in a generation.
        generations: the most generations.
        patience: generations without a better chromosome after which the search ends.
        tournament: how many chromosomes contend for each place among the parents.
        crossover: probability that a pair of parents is crossed.
        mutation: probability that a child is mutated.
        hall_of_fame: how many of the best so far pass to the next generation unchanged.
    """

    population: int = 100
    generations: int = 100
    patience: int = 10
    tournament: int = 2
    crossover: float = 0.9
    mutation: float = 0.1
    hall_of_fame: int = 5


def evolve(
    first: Tensor,
    score: Score,
    settings: Evolution,
    generator: torch.Generator,
    control: SearchControl | None = None,
) -> tuple[Tensor, float]:
    """Return the best chromosome found and its score.

    Args:
        first: the first generation `[population, length]`.
        score: what is minimised.
        settings: how to evolve.
        generator: source of randomness, on the CPU.
        control: when to end; its `watch` receives the best chromosome of every generation, the first included.
    """
    control = control or SearchControl()
    population, fitness = first, score(first)
    fame, scores = _best(population, fitness, settings.hall_of_fame)
    unchanged = 0
    for generation in range(settings.generations + 1):
        if generation:
            parents = population[tournament(fitness, len(first) - len(fame), settings.tournament, generator)]
            population = torch.cat([_children(parents, settings, generator), fame])
            fitness, before = score(population), float(scores[0])
            fame, scores = _best(population, fitness, settings.hall_of_fame)
            unchanged = 0 if float(scores[0]) < before else unchanged + 1
        control.report(fame[0], float(scores[0]))
        if float(scores[0]) <= control.tolerance or unchanged >= settings.patience:
            break
        if generation < settings.generations and control.deadline.passed:
            break
    return fame[0], float(scores[0])


def tournament(fitness: Tensor, count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return the indices of `count` winners, each the best (of lowest fitness) of `size` drawn with repetition."""
    drawn = torch.randint(len(fitness), (count, size), generator=generator)
    return drawn.gather(1, fitness[drawn].argmin(dim=1, keepdim=True)).flatten()


def cross_partially_matched(
    first: Tensor, second: Tensor, probability: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Cross pairs of permutations `[pairs, length]` (uniform partially matched crossover, Cicirello and Smith 2000).

    At every place, with the given probability, each takes the other's value; the old value moves to the place that the
    new value had before. Both stay permutations.
    """
    first, second = first.clone(), second.clone()
    place_in_first, place_in_second = first.argsort(dim=1), second.argsort(dim=1)
    chosen = torch.rand(first.shape, generator=generator) < probability
    for place in chosen.any(dim=0).nonzero().flatten().tolist():
        a = first[:, place]
        b = torch.where(chosen[:, place], second[:, place], a)  # pairs not chosen exchange a value with itself
        c = torch.where(chosen[:, place], a, second[:, place])
        _put(first, place_in_first, place, b)
        _put(second, place_in_second, place, c)
    return first, second


def shuffle_indexes(orders: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Mutate permutations `[count, length]`: swap each place, with the given probability, with another one."""
    orders = orders.clone()
    length = orders.shape[1]
    if length < 2:
        return orders
    chosen = torch.rand(orders.shape, generator=generator) < probability
    other = torch.randint(length - 1, orders.shape, generator=generator)
    other = other + (other >= torch.arange(length))  # any other place
    for place in chosen.any(dim=0).nonzero().flatten().tolist():
        rows = chosen[:, place].nonzero().flatten()
        there = other[rows, place]
        orders[rows, place], orders[rows, there] = orders[rows, there], orders[rows, place]
    return orders


def _put(orders: Tensor, places: Tensor, place: int, values: Tensor) -> None:
    """Swap values `[count]` into one place of each permutation, and update `places`, the inverse permutations."""
    old, from_place = orders[:, place].clone(), places.gather(1, values[:, None])
    orders[:, place] = values
    orders.scatter_(1, from_place, torch.where(from_place == place, values[:, None], old[:, None]))
    places.scatter_(1, old[:, None], from_place)
    places.scatter_(1, values[:, None], place)


def _children(parents: Tensor, settings: Evolution, generator: torch.Generator) -> Tensor:
    """Cross neighbours two by two (an odd last one is not crossed), then mutate some.

    FET gives no probabilities per gene: crossing exchanges two genes of a pair on average, mutating moves one.
    """
    length = parents.shape[1]
    children = parents.clone()
    pairs = torch.arange(0, len(parents) - 1, 2)
    pairs = pairs[torch.rand(len(pairs), generator=generator) < settings.crossover]
    children[pairs], children[pairs + 1] = cross_partially_matched(
        parents[pairs], parents[pairs + 1], 2 / length, generator
    )
    mutated = torch.rand(len(children), generator=generator) < settings.mutation
    children[mutated] = shuffle_indexes(children[mutated], 1 / length, generator)
    return children


def _best(population: Tensor, fitness: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the best different chromosomes and their fitness, best first."""
    different, which = torch.unique(population, dim=0, return_inverse=True)
    scores = torch.full((len(different),), torch.inf, dtype=fitness.dtype).scatter_reduce(0, which, fitness, "amin")
    order = scores.argsort(stable=True)[:count]
    return different[order], scores[order]
