"""Mosaic goes the way that fits what was sent, and finds what FET's and EDR's old presets found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Edr, Fet, Finding, Mosaic, Victim, find_attack, mosaic
from gradleak.exchange import Deadline, Knowledge, Progress, Reporter, Update
from gradleak.federation import Client
from gradleak.targets import Target

TEXTS = ["the cat sat on a mat", "dog ran"]
LABELS = [1, 0]


def sent(target: Target, texts: Sequence[str] = TEXTS, **client: Any) -> Update:
    return Client(target, **{"embeddings": "trained"} | client).update(texts, LABELS[: len(texts)])


def told(target: Target, texts: Sequence[str] = TEXTS) -> Knowledge:
    return Knowledge(labels=LABELS[: len(texts)], lengths=target.encode(list(texts)).lengths)


def plan(target: Target, update: Update, **settings: Any) -> tuple[str, ...]:
    victim = Victim(update.gradient(), Knowledge(labels=LABELS), torch.Generator().manual_seed(0))
    return Mosaic(**settings).plan(target, victim)


@pytest.mark.parametrize(
    ("family", "ways"),
    [("bert", ("angles", "sums")), ("gpt2", ("sums", "search")), ("lstm", ("search", "sums"))],
)
def test_the_way_fits_what_can_be_read(family: str, ways: tuple[str, ...]) -> None:
    target = small_target(family, dtype=torch.float64)
    assert plan(target, sent(target)) == ways
    assert plan(target, sent(target), ways=1) == ways[:1]


def test_without_a_classifiers_gradient_only_sums_are_left() -> None:
    target = small_target("bert", dtype=torch.float64)
    whole = sent(target)
    without = whole.with_tensors({n: t for n, t in whole.tensors.items() if not n.startswith(target.classifier)})
    assert plan(target, without) == ("sums",)
    assert Mosaic()(target, without, told(target)).texts == tuple(TEXTS)


@pytest.mark.parametrize(
    ("preset", "old"), [("angles", Fet.with_settings("thorough")), ("sums", Edr.with_settings("fast"))]
)
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:1]], ids=len)
def test_each_way_finds_what_its_old_spelling_finds(preset: str, old: Fet | Edr, texts: list[str]) -> None:
    target = small_target("bert")
    update, known = sent(target, texts), told(target, texts)
    expected = old(target, update, known)
    found = Mosaic.with_settings(preset)(target, update, known)
    assert found.token_ids == expected.token_ids == tuple(tuple(target.tokenizer(t)["input_ids"]) for t in texts)
    assert found.loss < mosaic.EXPLAINED


@pytest.mark.parametrize(("name", "preset"), [("fet", "thorough"), ("edr", "fast")])
def test_the_old_spellings_say_what_they_are(name: str, preset: str) -> None:
    target = small_target("bert")
    update, known = sent(target, TEXTS[:1]), told(target, TEXTS[:1])
    line = f"{name}:{preset} is gradleak's own mosaic, not {name.upper()}"
    assert line in find_attack(name).with_settings(preset)(target, update, known).notes
    quick = {"generations": "1"} if name == "fet" else {"iterations": "1"}
    assert not find_attack(name).with_settings("paper", quick).remarks()
    assert line not in Mosaic()(target, update, known).notes


def test_a_search_that_is_not_fets_is_said_to_be_none() -> None:
    assert Fet(rounds=1).remarks() == Fet(pairs=1).remarks() != ()


class Wrong(Fet):
    """A way that finds other words than were sent."""

    def run(self, target: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        ids = [target.tokenizer(text)["input_ids"] for text in ("a dog", "the cat")]
        return [Finding(ids, LABELS, 0.0) for _ in victims]


def test_where_the_first_way_does_not_explain_the_update_the_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert")
    monkeypatch.setitem(mosaic.WAYS, "angles", Wrong)
    update, known = sent(target), told(target)
    assert Mosaic(ways=1)(target, update, known).texts == ("a dog", "the cat")
    assert Mosaic()(target, update, known).texts == tuple(TEXTS)


def test_no_other_way_is_begun_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_target("bert")
    monkeypatch.setitem(mosaic.WAYS, "angles", Wrong)
    victim = Victim(sent(target).gradient(), told(target), torch.Generator().manual_seed(0))
    (found,) = Mosaic().run(target, [victim], Reporter(deadline=Deadline(0)))
    assert found.token_ids[0] == target.tokenizer("a dog")["input_ids"]


def test_progress_of_several_victims_goes_forward_to_its_end() -> None:
    target = small_target("bert")
    heard: list[Progress] = []
    victims = [Victim(sent(target, [t]).gradient(), told(target, [t]), torch.Generator()) for t in TEXTS]
    found = Mosaic().run(target, victims, Reporter(heard.append, interval=0))
    assert [target.decode(one.token_ids[0]) for one in found] == TEXTS
    assert [one.step for one in heard] == sorted(one.step for one in heard)
    assert [one.step == one.total for one in heard].index(True) == len(heard) - 1


def test_dropout_leaves_single_sentences_readable() -> None:
    target = small_target("bert", dtype=torch.float64, hidden_dropout_prob=0.1)
    update = sent(target, TEXTS[:1], dropout=True)
    found = Mosaic.with_settings("fast")(target, update, Knowledge(labels=LABELS[:1]))
    assert found.texts == tuple(TEXTS[:1])
