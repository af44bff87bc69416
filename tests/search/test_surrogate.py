"""A surrogate predicts from some solutions the residuals of others."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradleak.search import SequenceFeatures, Surrogate

EVERY = torch.tensor(list(permutations(range(6))))
FEATURES = SequenceFeatures(places=6, kinds=6)


def named(solution: list[int], reach: int) -> set[tuple[int, ...]]:
    """Features by name: which token stands where, and which tokens stand how far apart."""
    places = len(solution)
    pairs = {(d, solution[i], solution[i + d]) for d in range(1, reach + 1) for i in range(places - d)}
    return {(place, kind) for place, kind in enumerate(solution)} | pairs


@given(data=st.data(), places=st.integers(1, 6), kinds=st.integers(1, 4), reach=st.integers(0, 3))
def test_solutions_share_a_number_where_they_share_a_feature(
    data: st.DataObject, places: int, kinds: int, reach: int
) -> None:
    rows = st.lists(st.integers(0, kinds - 1), min_size=places, max_size=places)
    one, other = data.draw(rows), data.draw(rows)
    features = SequenceFeatures(places, kinds, reach)
    numbers = [set(row) for row in features(torch.tensor([one, other])).tolist()]
    assert [len(row) for row in numbers] == [len(named(one, reach)), len(named(other, reach))]
    assert len(numbers[0] & numbers[1]) == len(named(one, reach) & named(other, reach))
    assert max(numbers[0] | numbers[1]) < features.count


def residuals(goal: Tensor, solutions: Tensor, entries: int = 12, seed: int = 0) -> Tensor:
    """The residuals of solutions where every feature adds a vector of its own."""
    effects = torch.randn(FEATURES.count, entries, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return effects[FEATURES(goal[None])].sum(dim=1) - effects[FEATURES(solutions)].sum(dim=1)


def some(count: int, seed: int) -> Tensor:
    """Return so many orders, the last of `EVERY` not among them."""
    return EVERY[torch.randperm(len(EVERY) - 1, generator=torch.Generator().manual_seed(seed))[:count]]


@pytest.mark.parametrize("seed", range(4))
def test_the_goal_is_predicted_to_be_nearest_before_it_was_seen(seed: int) -> None:
    solutions = some(300, seed)
    stream = torch.Generator().manual_seed(seed)
    noise = 20 * torch.randn(len(solutions), 1, generator=stream, dtype=torch.float64)
    seen = torch.cat([residuals(EVERY[-1], solutions, seed=seed), noise], dim=1)  # an entry that means nothing
    surrogate = Surrogate(FEATURES, ridge=0.1)
    surrogate.learn(solutions, seen, torch.ones(len(solutions), dtype=torch.float64))
    predicted = surrogate.fit()(EVERY)
    assert predicted.shape == (len(EVERY),)
    assert int(predicted.argmin()) == len(EVERY) - 1


def test_learning_bit_by_bit_is_learning_at_once() -> None:
    solutions, stream = some(200, 0), torch.Generator().manual_seed(0)
    known = residuals(EVERY[-1], solutions).tanh()
    weights = torch.rand(len(solutions), generator=stream, dtype=torch.float64)
    at_once, in_parts = Surrogate(FEATURES), Surrogate(FEATURES)
    at_once.learn(solutions, known, weights)
    for part in torch.arange(len(solutions)).split(67):
        in_parts.learn(solutions[part], known[part], weights[part])
    torch.testing.assert_close(in_parts.fit()(EVERY), at_once.fit()(EVERY), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("heavier", [0, 1])
def test_what_weighs_more_counts_more(heavier: int) -> None:
    goals = EVERY[-1], EVERY[0]
    surrogate = Surrogate(FEATURES, ridge=0.1)
    for number, solutions in enumerate(some(600, 0).split(300)):  # of two worlds, each with its own goal
        weights = torch.full((300,), 1e4 if number == heavier else 1.0, dtype=torch.float64)
        surrogate.learn(solutions, residuals(goals[number], solutions, seed=number), weights)
    assert EVERY[surrogate.fit()(EVERY).argmin()].tolist() == goals[heavier].tolist()


def test_errors_are_what_corrects_a_predicted_distance() -> None:
    solutions, goal = some(80, 0), EVERY[-1]
    known = (2 * residuals(goal, solutions)).sin()  # far from a sum
    surrogate = Surrogate(FEATURES)
    surrogate.learn(solutions, known, torch.ones(80, dtype=torch.float64))
    predicted = surrogate.fit()
    errors = predicted.errors(solutions, known)
    truth = (known @ predicted.view).float()
    torch.testing.assert_close(predicted.corrected(errors)(solutions), truth.norm(dim=1), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(predicted(solutions), truth.norm(dim=1), rtol=0.05)


def test_leading_dimensions_are_kept() -> None:
    surrogate = Surrogate(FEATURES)
    surrogate.learn(EVERY[:50], residuals(EVERY[-1], EVERY[:50]), torch.ones(50, dtype=torch.float64))
    predicted = surrogate.fit()
    torch.testing.assert_close(predicted(EVERY.view(2, 360, 6)), predicted(EVERY).view(2, 360))
