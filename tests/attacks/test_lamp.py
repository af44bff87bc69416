"""What LAMP adds to DLG: a start, a regulariser, an order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import small_target
from gradleak.attacks import Dlg, Lamp, LampL2L1, Victim, lamp
from gradleak.exchange import Knowledge, Reporter, Update
from gradleak.federation import Client
from gradleak.matching import Matcher
from gradleak.metrics import score_tokens
from gradleak.optimisation import reorder, word_order
from gradleak.optimisation.cohort import Cohort
from gradleak.optimisation.descent import Descender
from gradleak.optimisation.guess import Guess
from gradleak.optimisation.reorder import best_neighbours, best_orders, order_losses, put_in_order
from gradleak.optimisation.start import best_sample
from gradleak.priors import Prior
from gradleak.search import neighbour_orders
from gradleak.targets import Target, Task, load_target

TEXTS = ["the big red dog ran", "a cat sat on a mat"]
SMALL = {"steps": 20, "steps_per_round": 10, "starts": 20, "permutations": 20, "moves": 20, "polish": 3}


def capture(target: Target, texts: list[str], embeddings: str = "frozen") -> tuple[Update, Knowledge]:
    labels = [number % 2 for number in range(len(texts))]
    update = Client(target, embeddings=embeddings).update(texts, labels)  # type: ignore[arg-type]
    return update, Knowledge(labels=labels, lengths=target.encode(texts).lengths)


def end_of_descent(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Tensor:
    """Return the embeddings at which LAMP's descent ends on one sentence."""
    target = small_target("bert")
    update, known = capture(target, TEXTS[1:])
    attack = Lamp(**{**SMALL, "lr": 0.1, "alpha_lm": 50.0, "polish": 0, "moves": 8, "starts": 4, **changes})
    cohort = attack.cohort(target, [Victim(update.gradient(), known, torch.Generator().manual_seed(0))], Reporter())
    monkeypatch.setattr(Lamp, "cohort", lambda *_: cohort)
    attack.run(target, cohort.victims, Reporter())
    monkeypatch.undo()
    return cohort.descender.now.embeddings


def test_every_ablation_changes_where_the_descent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = end_of_descent(monkeypatch)
    ablations: list[dict[str, Any]] = [{"alpha_lm": 0.0}, {"alpha_reg": 0.0}, {"discrete": "end"}, {"discrete": "none"}]
    for ablation in ablations:
        assert not torch.equal(whole, end_of_descent(monkeypatch, **ablation)), ablation


@pytest.mark.parametrize(("discrete", "when"), [("alternate", [10, 20, 25]), ("end", [25, 25, 25]), ("none", [])])
def test_moves_at_the_end_are_as_many_as_in_between(
    discrete: str, when: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = small_target("bert")
    update, known = capture(target, TEXTS)
    few = {**SMALL, "starts": 4, "permutations": 4, "moves": 4, "polish": 0}
    steps: list[int] = []
    rearrange = Descender.rearrange

    def noted(self: Descender, orders: Tensor) -> None:
        steps.append(self.steps_done)
        rearrange(self, orders)

    monkeypatch.setattr(Descender, "rearrange", noted)
    Lamp(**{**few, "steps": 25, "steps_per_round": 10, "alpha_lm": 0.0, "discrete": discrete})(target, update, known)
    assert steps == when


def test_the_start_is_the_best_of_many() -> None:
    target = small_target("bert")
    update, known = capture(target, TEXTS[:1])
    few = Lamp(**{**SMALL, "steps": 1, "starts": 1, "permutations": 1, "alpha_lm": 0.0, "polish": 0})
    many = Lamp(**{**SMALL, "steps": 1, "starts": 100, "permutations": 100, "alpha_lm": 0.0, "polish": 0})
    losses = [attack(target, update, known, seed=seed).history[0].loss for attack in (few, many) for seed in range(3)]
    assert sum(losses[3:]) < sum(losses[:3])


def test_the_regulariser_draws_lengths_to_the_vocabularys() -> None:
    target = small_target("bert")
    penalty = Lamp().norm_penalty(target)
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    mean = target.word_embeddings.norm(dim=1).mean()
    unit = torch.nn.functional.normalize(torch.randn(1, 1, 1, 4, 16), dim=-1)
    assert penalty(unit * mean, mask).item() == pytest.approx(0.0, abs=1e-8)
    assert penalty(unit * (mean + 2), mask).item() == pytest.approx(4.0, rel=1e-4)


def test_unknown_lengths_are_tried_and_the_best_are_kept() -> None:
    target = small_target("bert")
    update, _ = capture(target, TEXTS[:1])
    attack = Lamp(**{**SMALL, "longest_tried": 9, "lengths_kept": 2, "polish": 0, "alpha_lm": 0.0})
    result = attack(target, update, Knowledge(labels=[0]))
    assert 3 <= len(result.token_ids[0]) <= 9
    assert "lengths 3 to 9 tried" in result.notes


def test_polishing_puts_known_words_in_order() -> None:
    target = load_target("tiny")
    text = ["my father lost all his money"]
    update, known = capture(target, text)
    ids = target.encode(["his money lost all my father"]).ids[None, None]
    victims = [Victim(update.gradient(), known, torch.Generator())]
    cohort = Lamp(alpha_lm=0.0).cohort(target, victims, Reporter())
    words = replace(cohort.guess, embeddings=target.embed(ids))
    found = cohort.findings(put_in_order(cohort.matcher, words, 10))[0]
    assert target.decode(found.token_ids[0]) == text[0]
    assert found.loss < 1e-6


@pytest.mark.parametrize("texts", [["my father lost all his money"], ["the boy ran away", "who has seen my money"]])
def test_words_are_put_in_order_once_when_a_round_has_not_changed_them(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target("tiny")
    update, known = capture(target, texts)
    shuffled = [" ".join(reversed(text.split())) for text in texts]
    attack = Lamp(alpha_lm=0.0)
    cohort = attack.cohort(target, [Victim(update.gradient(), known, torch.Generator())], Reporter())
    cohort.measure_start()
    cohort.guess = replace(cohort.guess, embeddings=target.embed(target.encode(shuffled).ids[None, None]))
    cohort.words = cohort.nearest_words(cohort.guess)
    cohort.begin(attack.descent(1))
    orderings = []

    def counted(matcher: Matcher, words: Guess, iterations: int) -> Guess:
        orderings.append(len(words.losses))
        return put_in_order(matcher, words, iterations)

    monkeypatch.setattr(word_order, "put_in_order", counted)
    order = word_order.WordOrder(10, early=True)
    order.after_round(cohort)
    assert orderings == []
    assert not any(cohort.solved())
    order.after_round(cohort)
    assert orderings == [1]
    assert all(cohort.solved())
    order.after_round(cohort)
    found = order.finish(cohort)[0]
    assert orderings == [1]
    assert [target.decode(ids) for ids in found.token_ids] == texts


@pytest.mark.parametrize(("early", "steps"), [(False, 50), (True, 20)])
def test_who_is_solved_by_an_early_order_takes_no_more_steps(
    early: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_target("tiny")
    text = "my father lost all his money"
    update, known = capture(target, [text])
    words = target.embed(target.encode(["his money lost all my father"]).ids[None, None])
    monkeypatch.setattr(lamp, "best_permutation", lambda cohort, _: replace(cohort.guess, embeddings=words))
    few = {**SMALL, "starts": 2, "permutations": 2}
    settings = {**few, "steps": 50, "lr": 1e-6, "alpha_lm": 0.0, "discrete": "none", "order_early": early}
    result = Lamp(**settings)(target, update, known)
    assert result.texts == (text,)
    assert result.history[-1].step == steps


@pytest.mark.parametrize(("early", "steps"), [(False, 50), (True, 40)])
def test_who_keeps_to_wrong_words_takes_no_more_steps(early: bool, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target("tiny")
    update, known = capture(target, ["my father lost all his money"])
    words = target.embed(target.encode(["my mother found all the books"]).ids[None, None])
    monkeypatch.setattr(lamp, "best_permutation", lambda cohort, _: replace(cohort.guess, embeddings=words))
    few = {**SMALL, "starts": 2, "permutations": 2}
    settings = {**few, "steps": 50, "lr": 1e-6, "alpha_lm": 0.0, "discrete": "none", "order_early": early}
    result = Lamp(**settings)(target, update, known)
    assert set(result.texts[0].split()) == {"my", "mother", "found", "all", "the", "books"}
    assert result.history[-1].step == steps


@pytest.mark.parametrize(("early", "steps"), [(False, 50), (True, 10)])
def test_who_arrives_early_does_not_wait_for_others(early: bool, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert")
    update, known = capture(target, TEXTS[:1])
    victims = [Victim(update.gradient(), known, torch.Generator().manual_seed(seed)) for seed in range(5)]
    monkeypatch.setattr(Cohort, "solved", lambda self: [number == 0 for number in self.numbers])
    few = {**SMALL, "starts": 2, "permutations": 2, "moves": 2, "polish": 1}
    attack = Lamp(**{**few, "steps": 50, "alpha_lm": 0.0, "order_early": early})
    found = attack.run(target, victims, Reporter())
    assert [finding.history[-1].step for finding in found] == [steps, 50, 50, 50, 50]


@pytest.mark.parametrize(("family", "task"), [("bert", "classification"), ("gpt2", "causal-lm")])
@pytest.mark.parametrize("kind", [Lamp, LampL2L1])
def test_the_best_neighbour_of_a_batch_is_that_of_whole_batches(kind: type[Lamp], family: str, task: Task) -> None:
    target = small_target(family, task, dtype=torch.float64)
    batches = [["the cat ran on a mat", "a dog sat"], ["a big red dog ran on", "the cat ran"]]
    captured = [capture(target, texts) for texts in batches]
    victims = [Victim(update.gradient(), known, torch.Generator()) for update, known in captured]
    cohort = kind(alpha_lm=0.0).cohort(target, victims, Reporter())
    matcher, words = cohort.matcher, cohort.nearest_words(cohort.guess)
    neighbours = [neighbour_orders(free) for free in words.slots.free[0, 0]]
    found = best_neighbours(matcher, words, neighbours)
    whole = []
    for number, orders in enumerate(neighbours):
        batch = torch.arange(orders.shape[1]).repeat(len(orders), 2, 1)
        batch[:, number] = orders
        whole.append(batch)
    tried = torch.cat(whole).expand(2, 1, -1, -1, -1)
    losses = order_losses(matcher, words, tried)
    assert torch.equal(found, best_orders(tried, losses))
    assert (losses.amin(dim=2) < words.losses).all()


@pytest.mark.parametrize("known", [Knowledge(labels=[0], lengths=[7]), Knowledge(labels=[0])])
def test_the_best_start_is_the_same_however_many_fit_at_once(known: Knowledge, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert", dtype=torch.float64)
    update, _ = capture(target, TEXTS[:1])
    attack = Lamp(**{**SMALL, "longest_tried": 7})
    found = []
    for most in (1 << 28, 1):
        monkeypatch.setattr(reorder, "MOST_NUMBERS", most)
        victims = [Victim(update.gradient(), known, torch.Generator().manual_seed(0))]
        found.append(best_sample(attack.cohort(target, victims, Reporter()), attack.starts).embeddings)
    assert torch.equal(*found)


def test_who_is_solved_leaves_and_the_others_do_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert")
    updates, known = zip(*(capture(target, [text]) for text in ("dog", TEXTS[1])), strict=True)
    attack = Lamp(**{**SMALL, "steps": 60, "alpha_lm": 0.0, "starts": 4, "permutations": 4, "moves": 8, "polish": 1})
    alone = [attack(target, update, facts) for update, facts in zip(updates, known, strict=True)]
    running: list[int] = []
    moves = Lamp.best_moves

    def count(self: Lamp, cohort: Cohort, prior: Prior | None) -> Tensor:
        running.append(len(cohort.numbers))
        return moves(self, cohort, prior)

    monkeypatch.setattr(Lamp, "best_moves", count)
    together = attack.many(target, updates, known)
    assert running[0] == 2
    assert running[-1] == 1
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert [len(result.history) for result in together] == [len(result.history) for result in alone]


@pytest.mark.slow
def test_lamp_finds_the_order_that_dlg_misses_on_the_embedded_model() -> None:
    target = load_target("tiny")
    texts = ["my father lost all his money", "the old man walked slowly home", "she never spoke about the war"]
    of_lamp, of_dlg = [], []
    for text in texts:
        update, known = capture(target, [text])
        reference = [list(row) for row in target.encode([text]).ids.tolist()]
        for attack, scores in ((Lamp.with_settings("fast"), of_lamp), (Dlg.with_settings("fast"), of_dlg)):
            result = attack(target, update, known)
            scores.append(score_tokens(result.token_ids, reference, target.tokenizer).rouge2)
    assert sum(of_lamp) / len(of_lamp) > sum(of_dlg) / len(of_dlg) + 20
