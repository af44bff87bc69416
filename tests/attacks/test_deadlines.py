"""Every attack ends when its time is up, with the best that it has."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from untrained_inverters import untrained_inverters

from conftest import PassesAfter, small_target
from gradleak.api import attack as attack_once
from gradleak.assignment.position_angles import read_grid
from gradleak.attacks import ATTACKS, Attack, Finding, Victim, find_attack
from gradleak.attacks.base import OUT_OF_TIME
from gradleak.attacks.edr.token_fusion import fuse
from gradleak.errors import GradleakError
from gradleak.exchange import Deadline, Knowledge, Reporter, Update
from gradleak.federation import Client
from gradleak.targets import Target, load_target

OWN_CLOCK = {"auto", "forest", "sieve"}
"""They are tested where they are."""

ATTACKS_HERE = sorted(
    name for name, kind in ATTACKS.items() if kind.__module__.startswith("gradleak.") and name not in OWN_CLOCK
)
every_attack = pytest.mark.parametrize("name", ATTACKS_HERE)
SEARCHES = [name for name in ATTACKS_HERE if not name.startswith("lti")]
every_search = pytest.mark.parametrize("name", SEARCHES)

LAMP = {"starts": "4", "permutations": "4", "moves": "4", "steps": "40", "steps_per_round": "5", "alpha_lm": "0"}
LAMP["polish"] = "2"
MODERATE: dict[str, dict[str, str]] = {
    "dlg": {"steps": "60"},
    "tag": {"steps": "60"},
    "lamp": LAMP,
    "lamp-l2l1": LAMP,
    "grab": {"starts": "4", "permutations": "4", "steps": "20", "rounds": "2", "passes": "1", "polish": "1"},
    "edr": {"iterations": "40", "adjustments": "5"},
    "fet": {"population": "20", "generations": "10", "iterations": "6"},
}
"""Settings with which small models take a second or two, every phase included."""

# What an attack may still ask after a yes, on its way back through its loops. LAMP asks most, 17 times: once for
# each length that it tries.
ON_THE_WAY_OUT = 25
BATCH = ["the cat sat on a big red mat .", "a dog ran on b c d"]
LONG = [
    "the committee has decided that the annual report will not be published before the end of the month",
    "she told her doctor that the pain in her left knee had become much worse since the last operation",
    "our server in frankfurt was attacked on monday and the password of the administrator has been changed",
    "he wants to sell the old house near the river because the roof is leaking and the garden is too large",
]


def built(name: str) -> Attack:
    settings = {"inverter": untrained_inverters()} if name.startswith("lti") else {}
    return find_attack(name).with_settings(settings=MODERATE.get(name, {}) | settings)


def prey(target: Target, *, told: bool = True) -> tuple[Victim, tuple[int, ...]]:
    update = Client(target, embeddings="trained").update(BATCH, [1, 0])
    lengths = target.encode(BATCH).lengths
    known = Knowledge(labels=[1, 0], lengths=lengths) if told else Knowledge(batch_size=2, longest=max(lengths))
    gradient = update.to(target.device, target.dtype).gradient()
    return Victim(gradient, known, torch.Generator().manual_seed(1)), lengths


def assert_sound(target: Target, finding: Finding, lengths: Sequence[int] | None) -> None:
    assert len(finding.token_ids) == len(BATCH)
    if lengths is not None:
        assert tuple(map(len, finding.token_ids)) == tuple(lengths)
    before, after = target.special_tokens
    for ids in finding.token_ids:
        assert tuple(ids[: len(before)]) == before
        assert tuple(ids[len(ids) - len(after) :]) == after
        assert all(0 <= token < len(target.word_embeddings) for token in ids)
    assert finding.labels is not None
    assert len(finding.labels) == len(BATCH)
    assert math.isfinite(finding.loss)


@every_search
@pytest.mark.parametrize("asks", [0, 3, 25])
def test_whenever_time_is_up_an_attack_returns_what_it_has(name: str, asks: int) -> None:
    target = small_target("bert")
    victim, lengths = prey(target)
    deadline = PassesAfter(asks)
    (finding,) = built(name).run(target, [victim], Reporter(deadline=deadline))
    assert_sound(target, finding, lengths)
    solved = finding.loss < 1e-4  # in fewer asks than that
    assert deadline.hit or solved
    assert deadline.asked <= asks + ON_THE_WAY_OUT


@every_search
@pytest.mark.parametrize("asks", [0, 6])
def test_so_does_one_that_was_told_nothing(name: str, asks: int) -> None:
    target = small_target("bert", num_labels=3)
    victim, _ = prey(target, told=False)
    deadline = PassesAfter(asks)
    (finding,) = built(name).run(target, [victim], Reporter(deadline=deadline))
    assert_sound(target, finding, None)
    assert deadline.hit or finding.loss < 1e-4
    assert deadline.asked <= asks + ON_THE_WAY_OUT


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        (name, preset)
        for name in ("lamp", "grab", "fet", "edr")
        for preset in ATTACKS[name].presets
        if preset != "paper"
    ],
)
@pytest.mark.parametrize("asks", [0, 20])
def test_so_does_every_preset(name: str, preset: str, asks: int) -> None:
    kind = find_attack(name)
    target = small_target("bert")
    victim, lengths = prey(target)
    deadline = PassesAfter(asks)
    quick = {"alpha_lm": "0"} if name == "lamp" else {}
    (finding,) = kind.with_settings(preset, quick).run(target, [victim], Reporter(deadline=deadline))
    solved = finding.loss < 1e-4  # in fewer asks than that
    assert_sound(target, finding, None if name == "fet" else lengths)
    assert deadline.hit or solved
    assert deadline.asked <= asks + ON_THE_WAY_OUT or solved


@pytest.mark.parametrize("name", ["lti", "lti-p"])
def test_an_inverter_answers_late_rather_than_not_at_all(name: str) -> None:
    target = small_target("bert")
    texts = ["the cat sat on a mat", "dog ran"]
    update = Client(target).update(texts, [1, 0])
    result = built(name)(target, update, Knowledge(lengths=target.encode(texts).lengths), budget=1e-9)
    assert tuple(map(len, result.token_ids)) == target.encode(texts).lengths
    assert math.isfinite(result.loss)
    assert OUT_OF_TIME in result.notes, "not all ways to label the batch were compared"


@every_attack
def test_a_deadline_that_is_far_away_changes_nothing(name: str) -> None:
    target = small_target("bert")
    texts = ["the cat sat on a mat", "dog ran"]
    update = Client(target, embeddings="trained").update(texts, [1, 0])
    known = Knowledge(labels=[1, 0], lengths=target.encode(texts).lengths)
    attack = built(name)
    if attack.has_setting("steps"):
        attack = dataclasses.replace(attack, steps=8)  # type: ignore[call-arg]
    without, within = (attack(target, update, known, seed=3, budget=budget) for budget in (None, 1e6))
    assert within.token_ids == without.token_ids
    assert within.loss == pytest.approx(without.loss, rel=1e-3, abs=1e-6)
    assert within.notes == without.notes


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny")


@pytest.fixture(scope="module")
def long_update(tiny: Target) -> Update:
    return Client(tiny, embeddings="trained").update(LONG, [1, 0, 1, 1])


@pytest.mark.parametrize(("name", "facts"), [*zip(SEARCHES, itertools.cycle([("labels", "lengths"), ()]))])
def test_a_batch_that_would_take_minutes_ends_within_seconds(
    name: str, facts: tuple[str, ...], tiny: Target, long_update: Update
) -> None:
    lengths = tiny.encode(LONG).lengths
    told: dict[str, Any] = {"labels": [1, 0, 1, 1], "lengths": lengths}
    known = Knowledge(batch_size=4, **{fact: told[fact] for fact in facts})
    started = time.monotonic()
    result = find_attack(name)()(tiny, long_update, known, budget=0.7)
    # 10 % and 2 s on a machine of one's own; a busy one may take several times as long for its last piece of work.
    assert time.monotonic() - started < 0.7 + 10
    assert len(result.token_ids) == 4
    assert math.isfinite(result.loss)
    assert result.notes[-1] == OUT_OF_TIME
    assert result.texts == tuple(tiny.decode(ids) for ids in result.token_ids)


@pytest.mark.parametrize("name", ["fet", "edr"])
def test_updates_that_are_attacked_one_by_one_have_a_budget_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first must not take what belongs to the others."""
    target = small_target("bert")
    update = Client(target, embeddings="trained").update(["the cat sat"], [1])
    known = Knowledge(labels=[1], lengths=target.encode(["the cat sat"]).lengths)
    left: list[tuple[int, float]] = []

    def run(_: Attack, __: Target, victims: Sequence[Victim], reporter: Reporter) -> list[Finding]:
        left.append((len(victims), reporter.deadline.left))
        return [Finding([[2, 5, 3]], [1], 0.0) for _ in victims]

    monkeypatch.setattr(find_attack(name), "run", run)
    find_attack(name)().many(target, [update] * 3, [known] * 3, budget=100.0)
    assert [count for count, _ in left] == [1, 1, 1]
    assert [seconds for _, seconds in left] == pytest.approx([100.0] * 3, abs=1.0)
    left.clear()
    find_attack(name)().many(target, [update] * 3, [known] * 3)
    assert [count for count, _ in left] == [3]


def test_side_by_side_they_share_it(bert: Target) -> None:
    updates = [Client(bert).update([text], [1]) for text in ("the cat sat", "a dog ran")]
    known = [Knowledge(labels=[1], lengths=[5])] * 2
    found = find_attack("dlg")().many(bert, updates, known, budget=0.2)
    assert all(result.notes[-1] == OUT_OF_TIME for result in found)
    assert sum(result.seconds for result in found) >= 0.4


def test_words_are_fused_and_columns_read_as_far_as_there_is_time(tiny: Target, long_update: Update) -> None:
    pieces = tiny.tokenizer("unbelievably reorganisations", add_special_tokens=False)["input_ids"]
    pieces = list(dict.fromkeys(pieces))
    deadline = PassesAfter(0)
    assert len(fuse(tiny, pieces, deadline)) < len(fuse(tiny, pieces))
    victim = Victim(long_update.gradient(), Knowledge(batch_size=4), torch.Generator())
    assert read_grid(tiny, victim, 4) is not None
    assert read_grid(tiny, victim, 4, PassesAfter(0)) is None


def test_the_python_interface_takes_a_budget(bert: Target) -> None:
    update = Client(bert, embeddings="trained").update(BATCH, [1, 0])
    known = Knowledge(labels=[1, 0], lengths=bert.encode(BATCH).lengths)
    assert OUT_OF_TIME in attack_once("dlg", bert, update, known, budget=0.05).notes
    assert attack_once("auto", bert, update, known, budget=7.0).settings["budget"] == 7.0
    with pytest.raises(GradleakError, match="the budget must be above 0 seconds, not 0"):
        attack_once("dlg", bert, update, known, budget=0)


def test_no_deadline_is_never_passed() -> None:
    assert not Deadline().limited
    assert not Deadline().passed
    assert Deadline(5).limited
