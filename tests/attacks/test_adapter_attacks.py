"""Attacks on adapters: those that match gradients run, those that read full matrices say why they cannot."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Attack, find_attack
from gradleak.attacks.auto import plan
from gradleak.defenses import defend, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update, Victim
from gradleak.federation import Client, FedAvg
from gradleak.leakage.evidence import FIRST_ROUND, examine
from gradleak.leakage.labels import known_labels, labels_from_classifier
from gradleak.targets import Lora, Target, Task
from gradleak.targets.adapters.fresh import with_lora

LAMP = {"steps": "3", "steps_per_round": "2", "starts": "2", "permutations": "2", "moves": "2", "polish": "0"}
MATCHING: dict[str, dict[str, str]] = {
    "dlg": {"steps": "3"},
    "tag": {"steps": "3"},
    "lamp": LAMP | {"alpha_lm": "0"},
    "lamp-l2l1": LAMP | {"alpha_lm": "0"},
    "grab": {"steps": "2", "starts": "2", "permutations": "2", "rounds": "1", "passes": "1", "polish": "0"},
    "auto": {"budget": "0.5"},
}
KINDS: list[tuple[str, Task]] = [("bert", "classification"), ("gpt2", "classification"), ("gpt2", "causal-lm")]
TEXTS, LABELS = ["the cat sat on a mat", "dog ran"], [1, 0]
every_kind = pytest.mark.parametrize(("family", "task"), KINDS)


def adapted(family: str = "bert", task: Task = "classification", **settings: Any) -> Target:
    return with_lora(small_target(family, task), Lora(**{"r": 4, "rounds": 2, **settings}))


def captured(target: Target, **client: Any) -> tuple[Update, Knowledge]:
    labels = LABELS if target.task == "classification" else None
    known = Knowledge(labels=labels, lengths=target.encode(TEXTS).lengths)
    return Client(target, **client).update(TEXTS, labels), known


def quick(name: str) -> Attack:
    return find_attack(name).with_settings(settings=MATCHING[name])


@every_kind
@pytest.mark.parametrize("attack", MATCHING)
def test_attacks_that_match_gradients_run_on_adapters(attack: str, family: str, task: Task) -> None:
    target = adapted(family, task, dropout=0.2)
    update, known = captured(target, dropout=attack == "grab")
    result = quick(attack)(target, update, known)
    assert tuple(map(len, result.token_ids)) == known.lengths
    assert math.isfinite(result.loss)
    assert result.model_hash == target.fingerprint


@pytest.mark.parametrize(
    ("attack", "fedavg"),
    [("dlg", None), ("lamp", FedAvg(steps=2, lr=0.01, optimizer="adamw")), ("grab", None)],
)
def test_first_rounds_are_attacked_through_b_alone(attack: str, fedavg: FedAvg | None) -> None:
    target = adapted(rounds=0)
    update, known = captured(target, fedavg=fedavg)
    assert math.isfinite(quick(attack)(target, update, known).loss)


def test_descent_finds_the_words_of_a_short_text_from_its_adapter_gradient() -> None:
    target = adapted(r=8, targets="all-linear")
    text, label = "dog ran on", [1]
    update = Client(target).update([text], label)
    known = Knowledge(labels=label, lengths=target.encode([text]).lengths)
    settings = {"steps": "120", "starts": "20", "permutations": "20", "alpha_lm": "0", "moves": "40"}
    result = find_attack("lamp").with_settings(settings=settings)(target, update, known)
    assert set(result.texts[0].split()) == set(text.split())


@pytest.mark.parametrize(
    ("attack", "need"), [("sieve", "attention"), ("mosaic", "word-embedding"), ("fet", "word-emb")]
)
def test_attacks_that_read_full_matrices_say_that_adapters_lack_them(attack: str, need: str) -> None:
    target = adapted()
    update, known = captured(target)
    with pytest.raises(GradleakError, match=f"{attack} needs {need}.* gradients; this update is one of adapters"):
        find_attack(attack)()(target, update, known)


def test_auto_plans_what_applies_to_adapters() -> None:
    target = adapted()
    update, known = captured(target)
    victim = Victim(update.gradient(), known, torch.Generator().manual_seed(0))
    names = [attack.name for attack in plan(target, victim, examine(target, victim.gradient))]
    assert sorted(names) == ["forest", "grab", "lamp"]


def test_evidence_names_the_adapters_and_takes_a_first_round_for_no_pruning() -> None:
    first, later = adapted(rounds=0), adapted()
    evidence = examine(first, captured(first)[0].gradient())
    assert "adapters alone: LoRA (r=4, alpha=16, targets=query+value, rounds=0)" in evidence.lines
    assert FIRST_ROUND in evidence.lines
    assert not evidence.pruned
    assert FIRST_ROUND not in examine(later, captured(later)[0].gradient()).lines
    pruned = defend(captured(later)[0], [parse_defense("prune:0.9")], torch.Generator())
    assert examine(later, pruned.gradient()).pruned


def test_labels_are_read_from_the_classifier_that_is_sent_with_adapters() -> None:
    target = adapted()
    update = Client(target).update(TEXTS[:1], [1])
    victim = Victim(update.gradient(), Knowledge(), torch.Generator())
    assert known_labels(target, victim)[0] == [1]
    both = captured(target)[0].gradient()
    ids, mask = target.encode(TEXTS)
    rows = [row[there].tolist() for row, there in zip(ids, mask, strict=True)]
    assert labels_from_classifier(target, both, rows) == LABELS
