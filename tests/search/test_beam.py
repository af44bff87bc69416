"""Beam search finds what its width allows, for many victims at once."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from conftest import PassesAfter
from gradleak.search import beam_search

CHOICES = 4
GOALS = torch.tensor([[2, 0, 3], [1, 1, 0]])


def vary(states: Tensor, place: int) -> Tensor:
    put = states[:, :, None].repeat(1, 1, CHOICES, 1)
    put[..., place] = torch.arange(CHOICES)
    return torch.cat([states, put.flatten(1, 2)], dim=1)


def misses(states: Tensor) -> Tensor:
    return (states != GOALS[:, None]).sum(dim=2).double()


def test_every_victim_finds_its_own_goal() -> None:
    beams, losses = beam_search(torch.zeros(2, 1, 3, dtype=torch.long), range(3), vary, misses, width=2)
    assert torch.equal(beams[:, 0], GOALS)
    assert losses[:, 0].tolist() == [0.0, 0.0]
    assert (losses.diff(dim=1) >= 0).all()


def test_no_state_is_kept_twice_while_there_are_others() -> None:
    start = torch.zeros(2, 5, 3, dtype=torch.long)
    beams, losses = beam_search(start, [0], vary, misses, width=4)
    assert losses.isfinite().all()
    assert all(len({tuple(state) for state in victim}) == 4 for victim in beams.tolist())


def trap(states: Tensor) -> Tensor:
    """The best first step leads away from the best end."""
    table = torch.full((CHOICES, CHOICES), 5.0)
    table[1] = 2.0  # looks good after one step, and stays so
    table[2, 3] = 0.0  # looks bad after one step
    table[2, :3] = 3.0
    return table[states[..., 0], states[..., 1]].double()


def test_a_wide_beam_finds_what_a_greedy_search_misses() -> None:
    start = torch.zeros(1, 1, 2, dtype=torch.long)
    _, greedy = beam_search(start, range(2), vary, trap, width=1)
    _, wide = beam_search(start, range(2), vary, trap, width=3)
    best = min(float(trap(torch.tensor([[list(s)]]))) for s in itertools.product(range(CHOICES), repeat=2))
    assert wide[0, 0] == best < greedy[0, 0]


def test_without_places_the_best_starts_are_returned() -> None:
    start = torch.tensor([[[0, 0, 0], [2, 0, 3]], [[1, 1, 0], [0, 0, 0]]])
    beams, losses = beam_search(start, [], vary, misses, width=1)
    assert torch.equal(beams[:, 0], GOALS)
    assert losses.tolist() == [[0.0], [0.0]]


def test_a_deadline_ends_the_search_and_no_beam_is_lost() -> None:
    """Time may be up while variants are scored: what was not is infinitely bad, the beams themselves, too."""
    start = torch.tensor([[[2, 3, 3], [0, 3, 3]], [[1, 3, 3], [0, 3, 3]]])
    calls: list[int] = []
    deadline = PassesAfter(1)

    def score(states: Tensor) -> Tensor:
        calls.append(len(states))
        return misses(states) if len(calls) == 1 or not deadline.passed else torch.full(states.shape[:2], torch.inf)

    beams, losses = beam_search(start, range(3), vary, score, width=2, deadline=deadline)
    assert torch.equal(beams[:, 0], start[:, 0])
    assert torch.equal(losses[:, 0], misses(start)[:, 0])
    assert len(calls) == 2
