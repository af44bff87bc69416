"""Moves keep every token, leave fixed places alone, and reach what the papers say they reach."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradleak.search import (
    LAMP_MOVES,
    Move,
    draw_orders,
    move_prefix,
    move_subsequence,
    move_token,
    neighbour_orders,
    rearrange,
    shuffle,
    swap,
)


def reached(move: Move, length: int, draws: int = 4_000) -> set[tuple[int, ...]]:
    return {tuple(order) for order in move(length, draws, torch.Generator().manual_seed(0)).tolist()}


@pytest.mark.parametrize("move", [*LAMP_MOVES, shuffle])
@given(length=st.integers(2, 30), seed=st.integers(0, 10_000))
def test_a_move_keeps_every_token(move: Move, length: int, seed: int) -> None:
    for order in move(length, 5, torch.Generator().manual_seed(seed)):
        assert sorted(order.tolist()) == list(range(length))


def test_swap_reaches_every_pair() -> None:
    expected = set()
    for i in range(5):
        for j in range(i + 1, 5):
            order = list(range(5))
            order[i], order[j] = j, i
            expected.add(tuple(order))
    assert reached(swap, 5) == expected


def test_move_token_reaches_every_place() -> None:
    expected = set()
    for i in range(5):
        for j in range(5):
            order = [k for k in range(5) if k != i]
            order.insert(j, i)
            if order != list(range(5)):
                expected.add(tuple(order))
    assert reached(move_token, 5) == expected


def test_move_prefix_reaches_every_rotation() -> None:
    assert reached(move_prefix, 4) == {(1, 2, 3, 0), (2, 3, 0, 1), (3, 0, 1, 2)}


def test_move_subsequence_keeps_its_tokens_together() -> None:
    # Two or more tokens in a row are taken out and put in elsewhere: at most three runs of neighbours remain.
    for order in reached(move_subsequence, 7):
        breaks = sum(order[k + 1] != order[k] + 1 for k in range(6))
        assert breaks <= 3
    assert (2, 3, 0, 1, 4, 5, 6) in reached(move_subsequence, 7)


@given(data=st.data())
def test_drawn_orders_move_free_tokens_of_one_sequence(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 9)))
    bits = data.draw(st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    free = torch.tensor(bits).view(shape)
    orders = draw_orders(free, 20, LAMP_MOVES, torch.Generator().manual_seed(0))
    stay = torch.arange(shape[1])
    assert orders.shape == (20, *shape)
    for order in orders:
        changed = [number for number in range(shape[0]) if not torch.equal(order[number], stay)]
        assert len(changed) <= 1
        assert torch.equal(order[~free], stay.expand(shape)[~free])
        assert all(sorted(row.tolist()) == stay.tolist() for row in order)


def test_rearranging_ids_and_embeddings_agrees() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(50, (4, 2, 6), generator=generator)
    table = torch.randn(50, 3, generator=generator)
    orders = draw_orders(torch.ones(2, 6, dtype=torch.bool), 4, (shuffle,), generator)
    assert torch.equal(table[rearrange(ids, orders)], rearrange(table[ids], orders))


def test_neighbours_are_all_swaps_and_moves_once() -> None:
    free = torch.tensor([False, True, True, True, True, False])
    found = {tuple(order.tolist()) for order in neighbour_orders(free)}
    orders = [*reached(swap, 4), *reached(move_token, 4), (0, 1, 2, 3)]
    assert found == {(0, *(place + 1 for place in order), 5) for order in orders}
    assert len(neighbour_orders(free)) == len(found)
    assert neighbour_orders(free)[0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("count", "orders"), [(0, [[0, 1, 2]]), (1, [[0, 1, 2]]), (2, [[0, 1, 2], [1, 0, 2]])])
def test_few_tokens_have_few_neighbours(count: int, orders: list[list[int]]) -> None:
    assert neighbour_orders(torch.arange(3) < count).tolist() == orders
