"""Annealing finds what can be found, ends when it should, and looks at nothing twice; blocks move as wholes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.search import Annealed, AnnealingTask, Schedule, TabuList, anneal
from gradleak.search.word_moves import in_order, insert_block, ranks_of, reverse_blocks, shuffle_blocks, swap_blocks

LENGTH = 7


@dataclass
class Swaps:
    """Proposes to exchange two random places, and keeps count of the heat."""

    numbers: int = 2

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        assert 0 <= heat <= 1
        length = states.shape[-1]
        pairs = (numbers * length).long()
        tokens = states[:, :, None].expand(*numbers.shape[:3], length)
        return tokens.scatter(-1, pairs, tokens.gather(-1, pairs.flip(-1)))


class Inversions:
    """The number of pairs in the wrong order; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, states: Tensor) -> Tensor:
        self.asked += [tuple(state) for state in states.flatten(0, 1).tolist()]
        pairs = list(itertools.combinations(range(states.shape[-1]), 2))
        return sum((states[..., i] > states[..., j]).double() for i, j in pairs)  # type: ignore[return-value]


def swaps(score: Callable[[Tensor], Tensor], **options: Any) -> AnnealingTask:
    return AnnealingTask(score=score, propose=Swaps(), **options)


def streams(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + number) for number in range(count)]


def shuffled(problems: int, starts: int, length: int = LENGTH) -> Tensor:
    return torch.rand(problems, starts, length, generator=torch.Generator().manual_seed(9)).argsort(dim=-1)


COLD = Schedule(temperature=1e-9, cooling=0.9, iterations=400, failures=1.0)
WARM = Schedule(temperature=20.0, cooling=0.9, iterations=400, failures=0.5)


# --- annealing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [COLD, WARM], ids=["cold", "warm"])
def test_every_problem_is_solved_and_its_loss_is_true(schedule: Schedule) -> None:
    found = anneal(shuffled(3, 4), swaps(Inversions()), schedule, streams(3), tolerance=0.0)
    assert found.losses.amin(dim=1).tolist() == [0.0] * 3
    assert torch.equal(found.losses, Inversions()(found.states))


def test_each_iteration_is_one_call_for_all_starts_of_all_problems() -> None:
    calls: list[torch.Size] = []

    def score(states: Tensor) -> Tensor:
        calls.append(states.shape)
        return torch.ones(states.shape[:2], dtype=torch.float64)

    schedule = Schedule(temperature=5.0, cooling=1.0, iterations=10, failures=1.0)
    anneal(shuffled(3, 4), swaps(score), schedule, streams(3))
    assert calls == [(3, 4, LENGTH)] * 11


def test_the_result_of_a_problem_does_not_depend_on_the_others() -> None:
    starts = shuffled(3, 4)
    together = anneal(starts, swaps(Inversions()), WARM, streams(3))
    for number in range(3):
        alone = anneal(starts[number : number + 1], swaps(Inversions()), WARM, streams(3)[number : number + 1])
        assert torch.equal(alone.losses[0], together.losses[number])
        assert torch.equal(alone.states[0], together.states[number])


@dataclass
class Unequal:
    """Problems of which each takes random numbers, and has places to exchange, of its own."""

    lengths: list[int]

    @property
    def numbers(self) -> list[int]:
        return [2 + length for length in self.lengths]

    def __call__(self, states: Tensor, numbers: Tensor, heat: float) -> Tensor:
        pairs = (numbers[..., :2] * torch.tensor(self.lengths)[:, None, None, None]).long()
        tokens = states[:, :, None].expand(*numbers.shape[:3], states.shape[-1])
        return tokens.scatter(-1, pairs, tokens.gather(-1, pairs.flip(-1)))

    def retire(self, remaining: Sequence[int]) -> None:
        self.lengths = [self.lengths[problem] for problem in remaining]


@pytest.mark.parametrize("span", [math.inf, 21.0])
def test_retired_problems_do_not_change_the_results_of_the_others(span: float) -> None:
    lengths = [2, 6, 3, 7, 4]
    tolerance = torch.tensor([0.0, -1.0, 0.0, 0.0, 0.0])
    starts = torch.stack([torch.cat([torch.arange(n).flip(0), torch.arange(n, 7)]) for n in lengths])
    starts = starts[:, None].repeat(1, 2, 1)
    sizes: list[int] = []

    def score(states: Tensor) -> Tensor:
        sizes.append(len(states))
        return Inversions()(states)

    together, streams_of_all = Unequal(list(lengths)), streams(5)
    found = anneal(
        starts,
        AnnealingTask(score=score, propose=together, span=span, retire=together.retire),
        WARM,
        streams_of_all,
        tolerance=tolerance,
    )
    assert sizes[0] == 5
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= 2
    assert together.lengths == [6], "what cannot be solved stays to the end"
    for number, length in enumerate(lengths):
        own = streams(5)[number]
        one = slice(number, number + 1)
        task = AnnealingTask(score=Inversions(), propose=Unequal([length]), span=span)
        alone = anneal(starts[one], task, WARM, [own], tolerance=tolerance[one])
        assert torch.equal(alone.states[0], found.states[number])
        assert torch.equal(alone.losses[0], found.losses[number])
        assert torch.equal(own.get_state(), streams_of_all[number].get_state()), (
            "a finished problem draws no more numbers"
        )


def test_a_solved_problem_ends_at_once() -> None:
    score = Inversions()
    anneal(torch.tensor([[[1, 0, 2, 3]] * 3]), swaps(score), COLD, streams(1), tolerance=0.0)
    assert (0, 1, 2, 3) in score.asked[-3:], "nothing is scored after the iteration that has found it"


def test_what_any_start_has_looked_at_is_not_looked_at_again() -> None:
    score = Inversions()
    schedule = Schedule(temperature=1e9, cooling=1.0, iterations=60, failures=1.0)
    anneal(torch.tensor([[[0, 1, 2, 3]]]), swaps(score), schedule, streams(1))
    current, seen = score.asked[0], {score.asked[0]}
    for state in score.asked[1:]:
        assert state not in seen or state == current, "where nothing new is proposed, it asks about where it is"
        current = state
        seen.add(state)
    assert 12 < len(seen) <= 24

    distinct = torch.tensor([[[0, 1, 2, 3], [3, 2, 1, 0]]])
    tabu = TabuList(distinct, 2)
    assert tabu.has(distinct[:, :, None]).all()
    assert tabu.has(distinct.flip(1)[:, :, None]).all()
    assert not tabu.has(torch.tensor([[[[1, 0, 2, 3]], [[0, 2, 1, 3]]]])).any()
    for state in ([1, 0, 2, 3], [0, 2, 1, 3]):
        tabu.add(torch.tensor([[state, state]]))
    assert not tabu.has(distinct[:, :, None]).any(), "the oldest are forgotten"


@pytest.mark.parametrize("failures", [0.1, 0.25])
def test_a_start_ends_after_so_many_failures(failures: float) -> None:
    score = Inversions()
    sorted_already = torch.arange(LENGTH).expand(1, 1, -1)
    schedule = Schedule(temperature=1e-9, cooling=0.9, iterations=200, failures=failures)
    found = anneal(sorted_already, swaps(score), schedule, streams(1))
    assert found.losses.item() == 0
    # The end is looked for every 16 iterations; a start that has ended asks about its own state.
    proposals = [state for state in score.asked if state != tuple(range(LENGTH))]
    assert len(set(proposals)) <= failures * 200 + 1
    assert len(score.asked) <= failures * 200 + 18


def test_heat_accepts_anything_and_cold_nothing_worse() -> None:
    def path(temperature: float) -> list[float]:
        score, losses = Inversions(), []
        schedule = Schedule(temperature=temperature, cooling=1.0, iterations=40, failures=1.0)

        def watch(_: int, best: Annealed) -> None:
            losses.append(best.losses.item())

        anneal(torch.arange(LENGTH).expand(1, 1, -1), swaps(score, watch=watch), schedule, streams(1))
        assert losses == [0.0] * 40, "the best is kept"
        return [Inversions()(torch.tensor(state)[None, None]).item() for state in score.asked]

    assert max(path(1e-9)) <= 2 * LENGTH - 3  # one swap away from sorted, always
    assert max(path(1e9)) > 2 * LENGTH - 3


def test_steps_that_will_be_taken_anyway_are_not_scored() -> None:
    schedule = Schedule(temperature=1e6, cooling=0.7, iterations=400, failures=0.5)
    counted, spared = Inversions(), Inversions()
    bound = float(LENGTH * (LENGTH - 1) / 2)
    for score, span in ((counted, math.inf), (spared, bound)):
        found = anneal(shuffled(1, 4), swaps(score, span=span), schedule, streams(1), tolerance=0.0)
        assert found.losses.min() == 0
    assert len(spared.asked) < len(counted.asked)
    always_hot = Schedule(temperature=1e9, cooling=1.0, iterations=5)
    last = anneal(shuffled(1, 4), swaps(Inversions(), span=bound), always_hot, streams(1))
    assert torch.equal(last.losses, Inversions()(last.states)), "at the end all is scored"


def test_it_does_not_start_where_nothing_is_left_to_do() -> None:
    score = Inversions()
    anneal(torch.arange(LENGTH).expand(1, 2, -1), swaps(score), COLD, streams(1), tolerance=0.0)
    assert len(score.asked) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"cooling": 1.1}, {"cooling": 0.0}, {"iterations": 0}, {"failures": -0.1}, {"tabu": 0}],
    ids=str,
)
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(GradleakError, match="annealing needs"):
        Schedule(**{"temperature": 1.0, "cooling": 0.5, "iterations": 5} | wrong)


# --- blocks --------------------------------------------------------------------------------------------------------

blocks = st.lists(st.integers(1, 3), min_size=2, max_size=8)


def laid_out(sizes: list[int]) -> tuple[list[list[int]], Tensor, Tensor]:
    """Return blocks of numbered tokens, the tokens in a row, and their ranks."""
    numbers = iter(range(sum(sizes)))
    words = [[next(numbers) for _ in range(size)] for size in sizes]
    begins = torch.tensor([index == 0 for size in sizes for index in range(size)])
    return words, torch.arange(sum(sizes)), ranks_of(begins)


@given(sizes=blocks, data=st.data())
def test_moves_of_blocks_do_what_lists_of_lists_do(sizes: list[int], data: st.DataObject) -> None:
    words, tokens, ranks = laid_out(sizes)
    i, j = (data.draw(st.integers(0, len(sizes) - 1)) for _ in range(2))
    one, other = torch.tensor(i + 1), torch.tensor(j + 1)
    swapped = list(words)
    swapped[i], swapped[j] = words[j], words[i]
    inserted = [word for word in words if word is not words[i]]
    inserted.insert(j, words[i])
    low, high = min(i, j), max(i, j)
    turned = words[:low] + words[low : high + 1][::-1] + words[high + 1 :]
    for move, expected in ((swap_blocks, swapped), (insert_block, inserted), (reverse_blocks, turned)):
        assert in_order(tokens, move(ranks, one, other)).tolist() == list(itertools.chain(*expected))


@given(sizes=blocks, seed=st.integers(0, 1_000))
def test_shuffled_blocks_stay_whole(sizes: list[int], seed: int) -> None:
    words, tokens, ranks = laid_out(sizes)
    keys = torch.rand(len(tokens) + 1, generator=torch.Generator().manual_seed(seed))
    result = in_order(tokens, shuffle_blocks(ranks, keys)).tolist()
    expected = [words[rank - 1] for rank in sorted(range(1, len(words) + 1), key=lambda rank: float(keys[rank]))]
    assert result == list(itertools.chain(*expected))


def test_many_sequences_move_at_once() -> None:
    tokens = torch.arange(4).expand(2, 3, 4)
    ranks = torch.arange(4).expand(2, 3, 4)
    first, second = torch.zeros(2, 3, dtype=torch.long), torch.arange(6).view(2, 3) % 4
    found = in_order(tokens, swap_blocks(ranks, first, second))
    assert found[0].tolist() == [[0, 1, 2, 3], [1, 0, 2, 3], [2, 1, 0, 3]]
    assert found[1].tolist() == [[3, 1, 2, 0], [0, 1, 2, 3], [1, 0, 2, 3]]
