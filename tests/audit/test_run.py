"""Attacks on many batches: in groups that fit, with scores where the private texts are known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch

from gradleak.attacks import Tag
from gradleak.audit.run import MAX_GROUP_VALUES, AttackPlan, BatchResult, group_size, mean_scores, run_plan
from gradleak.audit.scenario import CapturedBatch, Scenario
from gradleak.exchange import Knowledge
from gradleak.federation import Client
from gradleak.targets import Target

TEXTS = ("the cat sat", "a dog ran", "the mat", "a red cat", "a big dog")


def plan_of(target: Target, texts: tuple[str, ...] = TEXTS) -> AttackPlan:
    scenario = Scenario(texts=texts, batch_size=1, facts=("labels", "lengths"), seed=3)
    return AttackPlan.simulate(Tag(steps=2), target, scenario, seed=3)


def run(plan: AttackPlan, max_group: int | None = None) -> tuple[list[int], list[BatchResult]]:
    sizes: list[int] = []

    def watch(group: Sequence[CapturedBatch]) -> nullcontext[None]:
        sizes.append(len(group))
        return nullcontext()

    groups = list(run_plan(plan, watch, max_group=max_group))
    assert [len(group) for group in groups] == sizes
    return sizes, [result for group in groups for result in group]


@pytest.mark.parametrize(("max_group", "sizes"), [(None, [5]), (2, [2, 2, 1]), (5, [5]), (1, [1] * 5)])
def test_batches_are_attacked_in_groups_and_come_back_in_order(
    bert: Target, max_group: int | None, sizes: list[int]
) -> None:
    found, results = run(plan_of(bert), max_group)
    assert found == sizes
    assert [result.references for result in results] == [(text,) for text in TEXTS]


def test_large_updates_make_small_groups(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Client(bert).update(["the cat sat"], [1])
    assert group_size(bert, update) == 16
    assert group_size(bert, update, 100) == 100
    monkeypatch.setitem(MAX_GROUP_VALUES, "cpu", 3 * update.num_values)
    assert group_size(bert, update) == 3
    assert run(plan_of(bert))[0] == [3, 2]
    monkeypatch.setitem(MAX_GROUP_VALUES, "cpu", 1)
    assert group_size(bert, update) == 1


def test_grouping_changes_no_result(bert: Target) -> None:
    together, alone = (run(plan_of(bert), size)[1] for size in (5, 1))
    for one, other in zip(together, alone, strict=True):
        assert one.reconstruction.token_ids == other.reconstruction.token_ids
        assert one.reconstruction.loss == pytest.approx(other.reconstruction.loss, abs=1e-5)


def test_looking_at_the_first_batch_does_not_consume_it(bert: Target) -> None:
    plan = plan_of(bert)
    assert plan.first().texts == plan.first().texts == TEXTS[:1]
    assert [batch.texts for batch in plan.batches] == [(text,) for text in TEXTS]


def test_a_captured_update_has_no_scores(bert: Target) -> None:
    batch = CapturedBatch(Client(bert).update(["the cat sat"], [1]), Knowledge(labels=(1,), lengths=(5,)))
    plan = AttackPlan(attack=Tag(steps=2), target=bert, batches=iter([batch]), count=1)
    (result,) = run(plan)[1]
    assert (result.references, result.scores, result.order) == (None, None, [0])
    means = mean_scores([result])
    assert means.pop("seconds") == result.reconstruction.seconds
    assert set(means.values()) == {None}


@pytest.mark.parametrize("adapt", [False, True])
def test_threads_are_reduced_only_where_asked(bert: Target, adapt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    many = Tag.many

    def counted(self: Tag, *arguments: object, **options: object) -> object:
        seen.append(torch.get_num_threads())
        return many(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Tag, "many", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(run_plan(plan_of(bert, TEXTS[:1]), lambda _: nullcontext(), adapt_threads=adapt))
    finally:
        torch.set_num_threads(before)
    assert seen == [1 if adapt else 2]
