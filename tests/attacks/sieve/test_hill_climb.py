from __future__ import annotations

from gradleak.attacks.sieve.hill_climb import hill_climb

VALUES = [0.0, 1.0, 2.0, 1.5, 1.4, 3.0, 2.0, 1.0]


def onwards(state: int, best: tuple[int, float]) -> tuple[int, float] | None:
    return (state + 1, VALUES[state + 1]) if state + 1 < len(VALUES) else None


def test_a_climb_ends_at_the_first_top() -> None:
    assert hill_climb((0, VALUES[0]), onwards) == (2, 2.0)


def test_patience_passes_a_dip_and_the_best_state_is_returned() -> None:
    assert hill_climb((0, VALUES[0]), onwards, patience=1) == (2, 2.0)
    assert hill_climb((0, VALUES[0]), onwards, patience=2) == (5, 3.0)


def test_a_climb_keeps_to_its_steps_and_to_gains_that_count() -> None:
    assert hill_climb((0, VALUES[0]), onwards, steps=1) == (1, 1.0)
    assert hill_climb((0, VALUES[0]), onwards, least_gain=1.0) == (0, 0.0)
