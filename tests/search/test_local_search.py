"""Exhaustive neighbourhoods are whole, and the walk through them never comes back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from conftest import PassesAfter
from gradleak.search import (
    SearchControl,
    all_block_shifts,
    all_replacements,
    all_shifts,
    all_swaps,
    block_shifts,
    in_parts,
    neighbourhood,
    refine,
    shifts,
)

Row = tuple[int, ...]


def rows(tensor: Tensor) -> set[Row]:
    return set(map(tuple, tensor.tolist()))


def with_run_moved(length: int, first: int, size: int, to: int) -> Row:
    rest = [place for place in range(length) if not first <= place < first + size]
    return (*rest[:to], *range(first, first + size), *rest[to:])


@pytest.mark.parametrize("length", range(1, 8))
def test_neighbourhoods_hold_every_move_and_nothing_else(length: int) -> None:
    stay = tuple(range(length))
    swaps = set()
    for i in range(length):
        for j in range(i):
            row = list(stay)
            row[i], row[j] = j, i
            swaps.add(tuple(row))
    moves = {
        size: {
            with_run_moved(length, first, size, to)
            for first in range(length - size + 1)
            for to in range(length - size + 1)
        }
        - {stay}
        for size in range(1, length)
    }
    assert rows(all_swaps(length)) == swaps
    assert rows(all_shifts(length)) == moves.get(1, set())
    assert rows(all_block_shifts(length)) == set().union(*(moves[size] for size in range(2, length)))


def test_replacements_change_one_place_and_lose_no_kind() -> None:
    found = rows(all_replacements(torch.tensor([0, 1, 0, 2]), 3))
    assert found == {(1, 1, 0, 2), (2, 1, 0, 2), (0, 1, 1, 2), (0, 1, 2, 2)}
    assert all_replacements(torch.tensor([2, 0, 1]), 3).shape == (0, 3)
    assert all_replacements(torch.tensor([0]), 1).shape == (0, 1)


def table(scores: dict[Row, float]) -> tuple[list[Row], object]:
    """Return a score that looks solutions up, and the list of those it was asked for."""
    asked: list[Row] = []

    def score(solutions: Tensor) -> Tensor:
        asked.extend(map(tuple, solutions.tolist()))
        return torch.tensor([scores[tuple(row)] for row in solutions.tolist()], dtype=torch.float64)

    return asked, score


def line(solution: Tensor, _: int) -> list[Tensor]:
    """Neighbours on a line: one less, one more."""
    return [torch.stack([solution - 1, solution + 1])]


def test_the_walk_goes_down_and_out_of_a_local_optimum_without_turning_back() -> None:
    heights = [9.0, 4.0, 1.0, 3.0, 2.5, 0.0, 9.0]
    _, score = table({(place,): height for place, height in enumerate(heights)})
    seen: list[tuple[int, float]] = []
    best, lowest = refine(
        torch.tensor([1]), line, score, 10, SearchControl(watch=lambda at, height: seen.append((int(at), height)))
    )
    assert (int(best), lowest) == (5, 0.0)
    # From 2 the way back to 1 is visited: on to 3 although it is higher, and down to 5, where it is good enough.
    assert seen == [(1, 4.0), (2, 1.0), (2, 1.0), (2, 1.0), (5, 0.0)]


def test_the_best_on_the_way_is_returned_when_the_iterations_end() -> None:
    _, score = table({(place,): height for place, height in enumerate([9.0, 4.0, 1.0, 3.0, 3.5, 4.0, 5.0])})
    best, lowest = refine(torch.tensor([1]), line, score, 3)
    assert (int(best), lowest) == (2, 1.0)
    assert refine(torch.tensor([1]), line, score, 0)[1] == 4.0


def test_the_walk_ends_where_everything_was_visited() -> None:
    asked, score = table({(0, 1): 1.0, (1, 0): 2.0})
    best, lowest = refine(torch.tensor([0, 1]), lambda at, _: [at.flip(0)[None]], score, 50)
    assert (tuple(best.tolist()), lowest) == ((0, 1), 1.0)
    assert len(asked) == 2


def test_neighbours_are_told_the_iteration_from_one() -> None:
    told: list[int] = []

    def neighbours(solution: Tensor, iteration: int) -> list[Tensor]:
        told.append(iteration)
        return line(solution, iteration)

    _, score = table({(place,): float(place + 1) for place in range(-5, 12)})
    refine(torch.tensor([8]), neighbours, score, 4, SearchControl(tolerance=-100.0))
    assert told == [1, 2, 3, 4]


def test_neighbours_in_several_parts_are_one_neighbourhood() -> None:
    heights = {(place,): abs(place - 7.0) for place in range(-1, 20)}
    told: list[list[int]] = [[], []]

    def split(solution: Tensor, iteration: int) -> list[Tensor]:
        return list(torch.split(line(solution, iteration)[0], 1))

    for neighbours, seen in zip((line, split), told, strict=True):
        refine(
            torch.tensor([2]),
            neighbours,
            table(heights)[1],
            5,
            SearchControl(watch=lambda at, _, to=seen: to.append(int(at))),
        )
    assert told[0] == told[1] == [2, 3, 4, 5, 6, 7]


def test_a_deadline_ends_the_walk_between_parts() -> None:
    asked, score = table({(place,): abs(place - 50.0) for place in range(-1, 100)})

    def endless(solution: Tensor, _: int) -> Iterator[Tensor]:
        yield from ((solution + step)[None] for step in range(1, 40))

    best, lowest = refine(torch.tensor([2]), endless, score, 10, SearchControl(deadline=PassesAfter(2)))
    assert (int(best), lowest) == (4, 46.0)
    assert len(asked) == 3


@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("room", [1, 7, 40, 1 << 22])
def test_parts_of_a_neighbourhood_are_small_and_leave_nothing_out(
    length: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = torch.cat([all_shifts(length), all_block_shifts(length)])
    monkeypatch.setattr(neighbourhood, "MOST_NUMBERS", room)
    parts = list(in_parts(itertools.chain(shifts(length), block_shifts(length))))
    assert torch.equal(torch.cat(parts), expected)
    assert all(part.numel() <= max(room, length) for part in parts)
