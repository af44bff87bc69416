from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from conftest import TARGET_KINDS, small_target
from gradleak.attacks import Dlg, Finding, Tag, Victim
from gradleak.exchange import Knowledge, Reconstruction, Reporter, Update
from gradleak.federation import Client
from gradleak.targets import Target, Task

EQUAL = [["the cat sat"], ["big red dog"], ["a mat ."]]
DIFFERENT = [["cat"], ["the big red dog sat on a mat"], ["dog ran"]]
BATCHES = [["cat", "the dog ran"], ["a big mat"], ["dog ran on a red mat", "the"]]
ATTACKS = [Dlg(steps=3, lr=0.01), Tag(steps=3, lr=0.01)]

KINDS = [kind for kind in TARGET_KINDS if kind[0] in ("bert", "gpt2")]

every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=["dlg", "tag"])


def victims(target: Target, batches: Sequence[Sequence[str]]) -> tuple[list[Update], list[Knowledge]]:
    labels = [[(i + j) % 2 for j in range(len(texts))] for i, texts in enumerate(batches)]
    updates = [Client(target).update(texts, given) for texts, given in zip(batches, labels, strict=True)]
    known = [
        Knowledge(labels=given if target.task == "classification" else None, lengths=target.encode(texts).lengths)
        for texts, given in zip(batches, labels, strict=True)
    ]
    return updates, known


def assert_alike(found: Reconstruction, expected: Reconstruction) -> None:
    assert found.token_ids == expected.token_ids
    assert found.labels == expected.labels
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.notes == expected.notes
    assert [g.step for g in found.history] == [g.step for g in expected.history]
    assert [g.loss for g in found.history] == pytest.approx([g.loss for g in expected.history], rel=1e-4)


@pytest.mark.parametrize("batches", [EQUAL, DIFFERENT, BATCHES], ids=["equal-lengths", "lengths", "batch-sizes"])
@pytest.mark.parametrize(
    ("attack", "family", "task"),
    [(Dlg(steps=3, lr=0.01), *kind) for kind in KINDS[:2]] + [(Tag(steps=3, lr=0.01), *KINDS[2])],
)
def test_victims_attacked_together_give_what_they_give_alone(
    batches: list[list[str]], attack: Dlg, family: str, task: Task
) -> None:
    batches = [[text + " ." for text in texts] for texts in batches]  # a language model needs two tokens
    target = small_target(family, task, dtype=torch.float64)
    updates, known = victims(target, batches)
    together = attack.many(target, updates, known, seed=5)
    for result, update, facts in zip(together, updates, known, strict=True):
        assert_alike(result, attack(target, update, facts, seed=5))


@every_attack
def test_the_order_of_victims_does_not_matter(attack: Dlg) -> None:
    target = small_target("bert", dtype=torch.float64)
    updates, known = victims(target, DIFFERENT)
    forward = attack.many(target, updates, known)
    backward = attack.many(target, updates[::-1], known[::-1])
    for one, other in zip(forward, backward[::-1], strict=True):
        assert_alike(one, other)


def test_victims_that_sent_different_parameters_are_attacked_in_one_call(bert: Target) -> None:
    frozen, trained = (Client(bert, embeddings=e).update(["the cat"], [1]) for e in ("frozen", "trained"))
    known = Knowledge(labels=[1], lengths=[4])
    results = Dlg(steps=2).many(bert, [frozen, trained, frozen], [known] * 3)
    assert [result.token_ids[0][0] for result in results] == [2, 2, 2]
    assert [len(result.token_ids[0]) for result in results] == [4, 4, 4]


def test_what_one_victims_attacker_is_told_is_not_lost_beside_one_who_knows_less(bert: Target) -> None:
    updates, known = victims(bert, [["cat", "the dog ran"], ["a big mat", "dog"]])
    poorer = dataclasses.replace(known[1], labels=None, batch_size=2)
    for order in ([0, 1], [1, 0]):
        facts = [known[0], poorer]
        results = Dlg(steps=3).many(bert, [updates[i] for i in order], [facts[i] for i in order])
        told, searched = (results[order.index(i)] for i in (0, 1))
        assert told.labels == known[0].labels
        alone = Dlg(steps=3)(bert, updates[0], known[0])
        assert told.history[0].loss == pytest.approx(alone.history[0].loss, rel=1e-4)
        assert "labels searched together with the embeddings" in searched.notes


def test_how_many_lengths_others_have_to_try_does_not_matter() -> None:
    target = small_target("bert", dtype=torch.float64)
    updates = [Client(target).update([text], [1]) for text in ("the cat", "dog ran")]
    attack = Dlg(steps=4, lr=0.01, longest_tried=7, lengths_kept=2)
    for known in (Knowledge(), Knowledge(longest=4), Knowledge(lengths=[4])):
        together = attack.many(target, updates, [known, Knowledge()])
        assert_alike(together[0], attack(target, updates[0], known))


def test_lengths_that_others_positions_give_away_do_not_matter() -> None:
    target = small_target("bert", dtype=torch.float64)
    batches = [["the cat", "dog ran"], ["the big red dog sat", "a mat"]]
    updates = [Client(target, embeddings="words-frozen").update(texts, [0, 1]) for texts in batches]
    attack = Dlg(steps=4, lr=0.01, lengths_kept=2)
    known = Knowledge(labels=[0, 1])
    for found, update in zip(attack.many(target, updates, [known] * 2), updates, strict=True):
        assert_alike(found, attack(target, update, known))


def test_a_label_that_cannot_be_read_is_searched_for_its_victim_alone() -> None:
    target = small_target("bert", num_labels=3, dtype=torch.float64)
    readable, other = (Client(target).update(["the cat"], [label]) for label in (2, 0))
    hidden = other.with_tensors({**other.tensors, "classifier.bias": torch.tensor([-1.0, -1.0, 1.0]).double()})
    known = Knowledge(lengths=[4])
    found = Dlg(steps=3).many(target, [readable, hidden], [known] * 2)
    assert found[0].labels == (2,)
    assert "label 2: read from the classifier's bias gradient" in found[0].notes
    assert "labels searched together with the embeddings" in found[1].notes


def test_no_victims_give_no_results(bert: Target) -> None:
    assert Dlg().many(bert, [], []) == []


def test_as_much_must_be_known_as_there_are_updates(bert: Target) -> None:
    updates, known = victims(bert, EQUAL)
    with pytest.raises(ValueError, match="zip"):
        Dlg(steps=1).many(bert, updates, known[:2])


def test_on_a_cpu_short_sentences_are_not_padded_to_long_ones(bert: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, known = victims(
        bert, [["cat"], ["the big red dog sat on a mat"], ["dog ran"], ["a big red cat ran on a mat"]]
    )
    seen: list[list[int]] = []
    run = Dlg.run

    def noted(self: Dlg, target: Target, some: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        seen.append([max(victim.knowledge.lengths or ()) for victim in some])
        return run(self, target, some, reporter)

    monkeypatch.setattr(Dlg, "run", noted)
    found = Dlg(steps=1).many(bert, updates, known)
    assert seen == [[3, 4], [10, 10]]
    assert [len(result.token_ids[0]) for result in found] == [3, 10, 4, 10]
