from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.attacks.sieve.noise.drafts import START, Change, Draft, possible_changes
from gradleak.attacks.sieve.noise.lazy_climb import LazyClimb

WANTED = (7, 3, 9, 3, 5)


def alike(drafts: Sequence[Draft]) -> torch.Tensor:
    """How many words stand where they should, and how many there are too many or too few."""
    values = []
    for draft in drafts:
        right = sum(a == b for a, b in zip(draft.tokens, WANTED, strict=False))
        bag = sum(min(draft.tokens.count(token), WANTED.count(token)) for token in set(WANTED))
        values.append(right + bag - abs(len(draft.tokens) - len(WANTED)))
    return torch.tensor(values, dtype=torch.float64)


def nothing(tokens: Sequence[int]) -> list[list[int]]:
    return [[] for _ in range(len(tokens) + 1)]


def test_changes_speak_of_names_and_can_be_made_together() -> None:
    draft = Draft.of([4, 5, 6])
    first, second, third = draft.names
    assert draft.after([Change("insert", START, 9)]).tokens == (9, 4, 5, 6)
    assert draft.after([Change("insert", third, 9)]).tokens == (4, 5, 6, 9)
    assert draft.after([Change("replace", second, 9)]).tokens == (4, 9, 6)
    assert draft.after([Change("delete", first)]).tokens == (5, 6)
    assert draft.after([Change("move", first, third)]).tokens == (5, 6, 4)
    assert draft.after([Change("move", third, START)]).tokens == (6, 4, 5)
    assert draft.after([Change("swap", first, third)]).tokens == (6, 5, 4)
    assert draft.after([Change("delete", second), Change("move", third, START)]).tokens == (6, 4)


def test_a_change_of_a_word_that_is_gone_is_left_out() -> None:
    draft = Draft.of([4, 5])
    first, second = draft.names
    assert draft.after([Change("delete", first), Change("swap", first, second)]).tokens == (5,)
    assert draft.after([Change("replace", first, 8), Change("delete", first)]).tokens == (8, 5)


def test_all_neighbours_are_possible_and_none_has_another_length_if_that_is_known() -> None:
    draft = Draft.of([4, 5, 6])
    free = {draft.after([change]).tokens for change in possible_changes(draft, [8], [[], [9], [], []], resize=True)}
    assert {(8, 4, 5, 6), (4, 5, 6, 8), (4, 9, 5, 6), (4, 9, 6), (4, 6), (6, 5, 4), (5, 6, 4)} <= free
    assert (9, 4, 5, 6) not in free
    assert draft.tokens not in free
    fixed = possible_changes(draft, [8], [[], [9], [], []], resize=False)
    assert {len(draft.after([change]).tokens) for change in fixed} == {3}


def test_a_climb_finds_words_order_and_length_from_nothing() -> None:
    climb = LazyClimb(alike, nothing, 10, resize=True)
    climb.learn(range(12))
    draft, value = climb.run(Draft.of([]), 10_000)
    assert draft.tokens == WANTED
    assert value == 2 * len(WANTED)
    assert climb.leaders[0] == WANTED


def test_a_word_that_is_suggested_or_considered_is_found_though_it_was_not_learnt() -> None:
    start = Draft.of((7, 3, 1, 3, 5))
    assert LazyClimb(alike, nothing, 10, resize=True).run(start, 1000)[0].tokens == start.tokens
    suggested = LazyClimb(alike, lambda tokens: [[9]] * (len(tokens) + 1), 10, resize=True)
    assert suggested.run(start, 1000)[0].tokens == WANTED
    considered = LazyClimb(alike, nothing, 10, resize=True)
    considered.consider([Change("replace", start.names[2], 9)])
    assert considered.run(start, 1000)[0].tokens == WANTED


def test_no_change_is_given_up_before_it_was_evaluated_and_considered_ones_come_first() -> None:
    evaluated: list[tuple[int, ...]] = []

    def flat(drafts: Sequence[Draft]) -> torch.Tensor:
        evaluated.extend(draft.tokens for draft in drafts)
        return torch.zeros(len(drafts), dtype=torch.float64)

    start = Draft.of(range(30))
    climb = LazyClimb(flat, nothing, 40, resize=True)
    climb.consider([Change("replace", start.names[4], 99)])
    climb.run(start, 10_000)
    assert evaluated[1] == start.after([Change("replace", start.names[4], 99)]).tokens
    assert {
        start.after([change]).tokens for change in possible_changes(start, [], nothing(start.tokens), resize=True)
    } <= set(evaluated)


def test_a_climb_keeps_to_its_length_and_to_its_limits() -> None:
    climb = LazyClimb(alike, nothing, 3, resize=True)
    climb.learn(range(12))
    assert len(climb.run(Draft.of([]), 10_000)[0].tokens) == 3
    fixed = LazyClimb(alike, nothing, 10, resize=False)
    fixed.learn(range(12))
    assert len(fixed.run(Draft.of([1, 2]), 10_000)[0].tokens) == 2
    short = LazyClimb(alike, nothing, 10, resize=True)
    short.learn(range(12))
    short.run(Draft.of([]), 1)
    assert short.tried < 300
