"""Genetic operators keep permutations, and their results are distributed as those of DEAP."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from deap import tools
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradleak.search import (
    Evolution,
    SearchControl,
    cross_partially_matched,
    decode,
    encode,
    evolve,
    shuffle_indexes,
    tournament,
)

DRAWS = 6_000
Outcome = tuple[int, ...]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def orders(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.rand(count, length, generator=stream(seed)).argsort(dim=1)


def assert_same_distribution(found: Counter[Outcome], expected: Counter[Outcome]) -> None:
    """Two samples of the same size: the chi-squared statistic of their difference is what chance allows."""
    assert found.total() == expected.total() == DRAWS
    common = [o for o in found | expected if found[o] + expected[o] >= 10]
    rare = [sum(c[o] for o in found | expected if o not in common) for c in (found, expected)]
    pairs = [(found[o], expected[o]) for o in common] + [(rare[0], rare[1])]
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)
    freedom = max(1, len(pairs) - 1)
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5, (statistic, freedom)


def by_deap(operator: Callable[[random.Random], Outcome]) -> Counter[Outcome]:
    random.seed(0)
    return Counter(operator(random) for _ in range(DRAWS))  # type: ignore[arg-type]


# --- operators against DEAP's --------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(("one", "two"), [([0, 1, 2, 3], [2, 3, 1, 0]), ([3, 0, 2, 1], [3, 1, 0, 2])], ids=str)
def test_crossing_is_distributed_as_deaps_uniform_partially_matched(
    one: list[int], two: list[int], probability: float
) -> None:
    def deap(_: object) -> Outcome:
        a, b = tools.cxUniformPartialyMatched(one.copy(), two.copy(), probability)
        return (*a, *b)

    pairs = [torch.tensor(order).expand(DRAWS, -1) for order in (one, two)]
    found = torch.cat(cross_partially_matched(*pairs, probability, stream()), dim=1)
    assert_same_distribution(Counter(map(tuple, found.tolist())), by_deap(deap))


@pytest.mark.parametrize("probability", [0.1, 0.5, 1.0])
def test_mutating_is_distributed_as_deaps_shuffle_of_indexes(probability: float) -> None:
    def deap(_: object) -> Outcome:
        (mutated,) = tools.mutShuffleIndexes([0, 1, 2, 3], probability)
        return tuple(mutated)

    found = shuffle_indexes(torch.arange(4).expand(DRAWS, -1), probability, stream())
    assert_same_distribution(Counter(map(tuple, found.tolist())), by_deap(deap))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tournaments_are_won_as_often_as_deaps(size: int) -> None:
    fitness = torch.tensor([0.5, 0.1, 0.9, 0.3, 0.7])

    class Individual:
        def __init__(self, number: int) -> None:
            self.number = number
            self.fitness = -float(fitness[number])  # DEAP takes the greatest

    individuals = [Individual(number) for number in range(5)]

    def deap(_: object) -> Outcome:
        return (tools.selTournament(individuals, 1, size)[0].number,)

    found = Counter((number,) for number in tournament(fitness, DRAWS, size, stream()).tolist())
    assert_same_distribution(found, by_deap(deap))


# --- operators by themselves ---------------------------------------------------------------------------------------


@given(length=st.integers(1, 20), seed=st.integers(0, 1_000), probability=st.floats(0, 1))
def test_operators_keep_permutations_and_leave_their_arguments_alone(
    length: int, seed: int, probability: float
) -> None:
    first, second = orders(6, length, seed), orders(6, length, seed + 1)
    before = first.clone(), second.clone()
    made = [*cross_partially_matched(first, second, probability, stream(seed))]
    made.append(shuffle_indexes(first, probability, stream(seed)))
    for tensor in made:
        assert torch.equal(tensor.sort(dim=1).values, torch.arange(length).expand(6, -1))
    assert torch.equal(first, before[0])
    assert torch.equal(second, before[1])


def test_crossing_with_oneself_and_mutating_with_no_probability_change_nothing() -> None:
    same = orders(5, 7)
    for child in cross_partially_matched(same, same, 0.7, stream()):
        assert torch.equal(child, same)
    assert torch.equal(shuffle_indexes(same, 0.0, stream()), same)


# --- evolution -----------------------------------------------------------------------------------------------------


def misplaced(chromosomes: Tensor) -> Tensor:
    return (chromosomes != torch.arange(chromosomes.shape[1])).sum(dim=1).double()


def test_evolution_finds_an_order_whose_places_are_scored_one_by_one() -> None:
    found, score = evolve(
        orders(100, 9),
        misplaced,
        Evolution(generations=200, patience=60, mutation=0.3),
        stream(),
        SearchControl(tolerance=0.0),
    )
    assert found.tolist() == list(range(9))
    assert score == 0.0


def test_the_best_never_gets_lost_and_evolution_ends_when_nothing_changes() -> None:
    seen: list[float] = []
    settings = Evolution(population=20, generations=50, patience=4, crossover=0.0, mutation=0.0)
    best, score = evolve(
        orders(20, 12), misplaced, settings, stream(), SearchControl(watch=lambda _, loss: seen.append(loss))
    )
    assert seen == [score] * 5  # the first generation and four without a change
    assert score == float(misplaced(orders(20, 12)).min())
    assert float(misplaced(best[None])) == score
    seen.clear()
    evolve(orders(30, 12), misplaced, Evolution(), stream(), SearchControl(watch=lambda _, loss: seen.append(loss)))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < seen[0]


def test_evolution_ends_with_its_generations_or_when_it_is_good_enough() -> None:
    seen: list[float] = []
    settings = Evolution(generations=3, patience=100)
    evolve(orders(10, 20), misplaced, settings, stream(), SearchControl(watch=lambda _, loss: seen.append(loss)))
    assert len(seen) == 4
    seen.clear()
    evolve(
        orders(10, 20),
        misplaced,
        settings,
        stream(),
        SearchControl(tolerance=20.0, watch=lambda _, loss: seen.append(loss)),
    )
    assert len(seen) == 1


def test_evolution_repeats_itself_with_the_same_seed() -> None:
    results = [evolve(orders(20, 15), misplaced, Evolution(generations=5), stream(seed)) for seed in (3, 3, 4)]
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][0], results[2][0])


# --- chromosomes ---------------------------------------------------------------------------------------------------


def test_a_chromosome_lists_places_by_kind_with_connectors_between() -> None:
    # the cat saw the dog: kinds the, cat, saw, dog; the connector of the two places of "the" has number 5.
    solution = torch.tensor([[0, 1, 2, 0, 3]])
    assert encode(solution).tolist() == [[0, 5, 3, 1, 2, 4]]
    assert decode(encode(solution), 5).tolist() == solution.tolist()
    assert encode(torch.tensor([[1, 0, 0, 0]])).tolist() == [[1, 4, 2, 5, 3, 0]]


def test_connectors_that_join_nothing_slide_on_to_the_next_places() -> None:
    # Three places, one kind more than once: + stands for the connector 3.
    assert decode(torch.tensor([[3, 0, 1, 2]]), 3).tolist() == [[0, 0, 1]]  # at the beginning: joins the first two
    assert decode(torch.tensor([[0, 1, 2, 3]]), 3).tolist() == [[0, 0, 1]]  # at the end: the first two again
    assert decode(torch.tensor([[0, 3, 4, 1, 2, 5][:5]]), 3).tolist() == [[0, 0, 0]]  # side by side


@given(data=st.data())
def test_every_order_decodes_to_a_solution_with_all_kinds_and_back(data: st.DataObject) -> None:
    places = data.draw(st.integers(1, 12))
    kinds = data.draw(st.integers(1, places))
    chromosomes = orders(8, 2 * places - kinds, data.draw(st.integers(0, 1_000)))
    solutions = decode(chromosomes, places)
    assert solutions.shape == (8, places)
    assert all(set(row) == set(range(kinds)) for row in solutions.tolist())
    assert torch.equal(decode(encode(solutions), places), solutions)
