from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from conftest import PassesAfter, small_target
from gradleak.exchange import Deadline
from gradleak.matching import Candidates
from gradleak.optimisation import descent as descent_module
from gradleak.optimisation.descent import Descender, Descent, clip_each, descend
from gradleak.optimisation.guess import Guess, random_guess
from gradleak.optimisation.slots import Slots
from gradleak.targets import Target

BERT = small_target("bert", num_labels=3)
GOAL = 0.3


class Bowl:
    """Stands in for a Matcher: each guess's loss is its squared distance from a goal, so that slopes are known."""

    def __init__(self, loss: Callable[[Candidates], Tensor] | None = None, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        self.loss = loss or (lambda c: (c.inputs - GOAL).square().flatten(2).sum(dim=2))

    def gradients(self, candidates: Candidates) -> tuple[Tensor, dict[str, Tensor]]:
        losses = self.loss(candidates).double()
        slopes = torch.autograd.grad(losses.sum(), list(candidates.leaves.values()), allow_unused=True)
        found = {
            name: torch.zeros_like(leaf) if slope is None else slope
            for (name, leaf), slope in zip(candidates.leaves.items(), slopes, strict=True)
        }
        return losses.detach(), found


def guess_of(
    lengths: list[list[list[int]]], labels: Tensor | None = None, target: Target = BERT, seed: int = 0
) -> Guess:
    generators = [torch.Generator().manual_seed(seed + number) for number in range(len(lengths))]
    return random_guess(target, Slots.of(target, lengths), labels, generators)


CLASSES = torch.zeros(1, 2, 1, dtype=torch.long)
TWO_STARTS = [[[6], [4]]]


# --- schedules -----------------------------------------------------------------------------------------------------


@given(steps=st.integers(1, 500), rate=st.floats(1e-4, 1.0))
def test_a_linear_schedule_falls_in_a_straight_line_towards_zero(steps: int, rate: float) -> None:
    descent = Descent(steps=steps, lr=rate, linear=True)
    rates = [descent.rate(step) for step in range(steps)]
    assert rates[0] == rate
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(rate / steps)
    assert descent.rate(steps) == 0


@given(decay=st.floats(0.1, 1.0), step=st.integers(0, 500))
def test_a_stepwise_schedule_decays_every_fifty_steps(decay: float, step: int) -> None:
    descent = Descent(steps=501, lr=0.1, decay=decay)
    expected = 0.1
    for _ in range(step // 50):
        expected *= decay
    assert descent.rate(step) == pytest.approx(expected)


def test_the_rate_stays_where_it_is_by_default() -> None:
    assert {Descent(steps=9, lr=0.2).rate(step) for step in range(9)} == {0.2}


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_descent_takes_the_steps_of_its_optimizer_and_schedule(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descent_module, "DECAY_EVERY", 2)
    guess = guess_of(TWO_STARTS, CLASSES)
    descent = Descent(steps=5, lr=0.05, optimizer=optimizer, decay=0.5)  # type: ignore[arg-type]
    seen: list[Tensor] = []
    descend(BERT, Bowl(), guess, descent, lambda _, best: seen.append(best.embeddings.clone()))  # type: ignore[arg-type]
    free = guess.slots.free
    variable = guess.embeddings[free].clone().requires_grad_()
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    plain = kind([variable], lr=0.05)
    for step, embeddings in enumerate(seen):
        assert_close(embeddings[free], variable.detach())
        plain.zero_grad()
        (variable - GOAL).square().sum().backward()
        plain.param_groups[0]["lr"] = 0.05 * 0.5 ** (step // 2)
        plain.step()
    assert len(seen) == 5


# --- clipping ------------------------------------------------------------------------------------------------------


@given(most=st.floats(0.1, 10), large=st.floats(20, 1e4), small=st.floats(1e-6, 0.05))
def test_clipping_limits_each_guess_alone(most: float, large: float, small: float) -> None:
    slope = torch.ones(2, 2, 1, 4, dtype=torch.float64) / 2  # norm 1
    slope *= torch.tensor([[large, small], [small, large]]).double()[..., None, None]
    clipped = clip_each(slope, most)
    norms = clipped.flatten(2).norm(dim=2)
    assert_close(norms, torch.tensor([[most, small], [small, most]]).double())
    assert_close(clipped / norms[..., None, None], slope / slope.flatten(2).norm(dim=2)[..., None, None])


def test_no_limit_means_no_clipping_and_zero_slopes_stay_zero() -> None:
    slope = torch.full((1, 2, 3), 1e6)
    assert torch.equal(clip_each(slope, 0.0), slope)
    assert torch.equal(clip_each(torch.zeros(1, 2, 3), 1.0), torch.zeros(1, 2, 3))


# --- what a descent keeps ------------------------------------------------------------------------------------------


def test_the_best_state_that_each_start_passed_through_is_kept() -> None:
    guess = guess_of(TWO_STARTS, CLASSES)
    losses_seen: list[Tensor] = []

    def rugged(candidates: Candidates) -> Tensor:
        step = len(losses_seen)
        values = torch.tensor([[5.0, 3.0, 4.0, 9.0], [2.0, 6.0, 1.0, 7.0]])[:, step]
        losses_seen.append(candidates.inputs.detach().clone())
        return values[None] + 0 * candidates.inputs.flatten(2).sum(dim=2)

    best = descend(BERT, Bowl(rugged), guess, Descent(steps=4, lr=0.1))  # type: ignore[arg-type]
    assert best.losses.tolist() == [[3.0, 1.0]]
    filled = best.slots.fill(BERT, best.embeddings)
    assert torch.equal(filled[0, 0], losses_seen[1][0, 0])
    assert torch.equal(filled[0, 1], losses_seen[2][0, 1])


def test_losses_that_watchers_see_never_rise_and_end_lower() -> None:
    guess = guess_of(TWO_STARTS, CLASSES)
    seen: list[list[float]] = []
    best = descend(BERT, Bowl(), guess, Descent(steps=30, lr=0.1), lambda _, g: seen.append(g.losses[0].tolist()))  # type: ignore[arg-type]
    for start in zip(*seen, strict=True):
        assert list(start) == sorted(start, reverse=True)
        assert start[-1] < start[0]
    assert best.losses[0].tolist() == seen[-1]


def test_a_descent_leaves_the_guess_it_starts_from_as_it_is() -> None:
    guess = guess_of(TWO_STARTS)
    before = guess.embeddings.clone(), guess.labels.clone(), guess.losses.clone()
    descend(BERT, Bowl(), guess, Descent(steps=3, lr=0.1))  # type: ignore[arg-type]
    for kept, now in zip(before, (guess.embeddings, guess.labels, guess.losses), strict=True):
        assert torch.equal(kept, now)
        assert not now.requires_grad


def test_special_tokens_and_padding_stay_what_they_are_in_every_step() -> None:
    guess = guess_of(TWO_STARTS, CLASSES)
    fixed = BERT.embed(guess.slots.ids[~guess.slots.free])

    def looked_at(candidates: Candidates) -> Tensor:
        assert torch.equal(candidates.inputs[~guess.slots.free], fixed)
        assert torch.equal(candidates.mask, guess.slots.mask)
        return candidates.inputs.square().flatten(2).sum(dim=2)

    descend(BERT, Bowl(looked_at), guess, Descent(steps=3, lr=0.1, optimizer="adamw"))  # type: ignore[arg-type]


def test_starts_do_not_feel_each_other() -> None:
    both = guess_of([[[5], [5]]], CLASSES)
    descent = Descent(steps=6, lr=0.1, clip=0.5)
    together = descend(BERT, Bowl(), both, descent)  # type: ignore[arg-type]
    for start in range(2):
        alone = descend(BERT, Bowl(), both.starts(torch.tensor([[start]])), descent)  # type: ignore[arg-type]
        assert torch.equal(together.embeddings[:, start], alone.embeddings[:, 0])
        assert torch.equal(together.losses[:, start], alone.losses[:, 0])


def test_no_steps_give_the_start_back() -> None:
    guess = guess_of(TWO_STARTS, CLASSES)
    assert descend(BERT, Bowl(), guess, Descent(steps=0, lr=0.1)) is guess  # type: ignore[arg-type]


# --- guesses -------------------------------------------------------------------------------------------------------


def test_unknown_labels_start_even_and_go_where_the_loss_falls() -> None:
    guess = guess_of(TWO_STARTS)
    assert_close(guess.candidates(BERT).labels, torch.full((1, 2, 1, 3), 1 / 3))

    def likes_class_two(candidates: Candidates) -> Tensor:
        return 1 - candidates.labels[..., 2].flatten(2).sum(dim=2)

    best = descend(BERT, Bowl(likes_class_two), guess, Descent(steps=20, lr=0.1))  # type: ignore[arg-type]
    assert (best.labels.argmax(dim=-1) == 2).all()
    assert_close(best.candidates(BERT).labels.sum(dim=-1), torch.ones(1, 2, 1))


def test_labels_of_a_language_model_are_guessed_for_every_token() -> None:
    target = small_target("gpt2", "causal-lm")
    guess = guess_of([[[5, 3]]], target=target)
    assert guess.labels.shape == (1, 1, 2, 5, target.num_labels)


def test_known_labels_are_classes_and_stay() -> None:
    guess = guess_of(TWO_STARTS, CLASSES + 1)
    best = descend(BERT, Bowl(), guess, Descent(steps=3, lr=0.1))  # type: ignore[arg-type]
    assert torch.equal(best.labels, CLASSES + 1)


def test_each_victims_start_comes_from_its_own_stream() -> None:
    lengths = [[[5]], [[5]]]
    both = guess_of(lengths)
    assert not torch.equal(both.embeddings[0], both.embeddings[1])
    assert torch.equal(both.embeddings[1], guess_of(lengths[:1], seed=1).embeddings[0])
    assert (both.losses == torch.inf).all()


def test_a_start_does_not_depend_on_how_long_its_neighbours_are() -> None:
    alone = guess_of([[[4, 3]]])
    beside = guess_of([[[4, 3]], [[9, 3]]])
    free = alone.slots.free[0]
    assert torch.equal(beside.embeddings[0, ..., :4, :][free], alone.embeddings[0][free])


def test_the_best_starts_are_those_with_the_smallest_losses() -> None:
    guess = guess_of([[[3], [4], [5]], [[6], [7], [8]]])
    guess = Guess(guess.slots, guess.embeddings, guess.labels, torch.tensor([[3.0, 1.0, 2.0], [0.5, 9.0, 0.1]]))
    best = guess.best_starts(2)
    assert best.losses.tolist() == [[1.0, 2.0], [pytest.approx(0.1), 0.5]]
    assert best.slots.mask.sum(dim=-1).flatten().tolist() == [4, 5, 8, 6]
    assert torch.equal(best.embeddings[0, 0], guess.embeddings[0, 1])


def test_starts_are_put_in_place_of_the_chosen_victims_chosen_ones() -> None:
    guess = guess_of([[[3], [4]], [[5], [4]], [[6], [7]]])
    chosen = torch.tensor([[1], [0]])
    other = guess.select([0, 2]).starts(chosen)
    other = Guess(
        other.slots, other.embeddings + 1, other.labels + 1, torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    )
    both = guess.put([0, 2], chosen, other)
    assert both.losses.flatten().tolist() == [torch.inf, 0.1, torch.inf, torch.inf, 0.2, torch.inf]
    assert torch.equal((both.embeddings != guess.embeddings).flatten(2).any(dim=2), both.losses < 1)
    assert torch.equal((both.labels != guess.labels).flatten(2).any(dim=2), both.losses < 1)


def test_a_start_whose_loss_is_no_number_is_never_the_best() -> None:
    guess = guess_of([[[3], [4]]])
    guess = Guess(guess.slots, guess.embeddings, guess.labels, torch.tensor([[float("nan"), 7.0]]))
    assert guess.best_starts(1).losses.tolist() == [[7.0]]


# --- retired victims ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_active_victims_go_on_as_if_none_had_been_retired(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descent_module, "DECAY_EVERY", 3)
    guess = guess_of([[[6]], [[4]], [[5]]], torch.zeros(3, 1, 1, dtype=torch.long))
    descent = Descent(steps=8, lr=0.05, optimizer=optimizer, decay=0.5)  # type: ignore[arg-type]
    together = Descender(BERT, Bowl(), guess, descent)  # type: ignore[arg-type]
    together.run(4)
    staying = together.select([2, 0], Bowl())  # type: ignore[arg-type]
    alone, expected = staying.run(4), together.run(4).select([2, 0])
    assert staying.steps_done == 8
    assert_close(alone.embeddings, expected.embeddings, rtol=0, atol=0)
    assert_close(alone.losses, expected.losses, rtol=0, atol=0)
    assert_close(staying.now.embeddings, together.now.select([2, 0]).embeddings, rtol=0, atol=0)


def test_a_descent_ends_when_time_is_up_at_the_best_it_has_seen() -> None:
    descent, late = Descent(steps=9, lr=0.1), Bowl(deadline=PassesAfter(4))
    whole = Descender(BERT, Bowl(), guess_of([[[5]]]), descent)  # type: ignore[arg-type]
    stopped = Descender(BERT, late, guess_of([[[5]]]), descent)  # type: ignore[arg-type]
    expected = whole.run(4)
    assert torch.equal(stopped.run(9).embeddings, expected.embeddings)
    assert stopped.steps_done == 4
    assert stopped.run(9).losses.isfinite().all()
