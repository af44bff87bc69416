"""Auto looks before it attacks, orders what applies, and keeps to its budget."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Attack, Auto, Grab, Lamp, Sieve, Victim
from gradleak.attacks.auto import plan, verified_by_gradient
from gradleak.defenses import defend, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Finding, Knowledge, Update
from gradleak.federation import Client
from gradleak.leakage.evidence import NO_ATTENTION, examine
from gradleak.targets import Target, load_target

TEXTS = ["my father lost all his money", "she never spoke about the war"]


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny", 2)


def capture(target: Target, *defenses: str, **client: Any) -> Update:
    update = Client(target, **client).update(TEXTS, [0, 1])
    return defend(update, [parse_defense(text) for text in defenses], torch.Generator().manual_seed(0))


def victim_of(update: Update) -> Victim:
    return Victim(update.gradient(), Knowledge(), torch.Generator().manual_seed(0))


def test_a_text_cast_to_bfloat16_is_read_by_auto(tiny: Target) -> None:
    update = Client(tiny).update(TEXTS[:1], [1])
    rounded = update.with_tensors({name: tensor.bfloat16().float() for name, tensor in update.tensors.items()})
    result = Auto(budget=60.0)(tiny, rounded)
    assert result.texts == (TEXTS[0],)
    assert not result.verified


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dropout", [False, True])
def test_a_rounded_update_is_read_by_sieve_first(tiny: Target, dtype: torch.dtype, dropout: bool) -> None:
    update = capture(tiny, dropout=dropout)
    rounded = update.with_tensors({name: tensor.to(dtype).float() for name, tensor in update.tensors.items()})
    assert names(tiny, rounded)[0] == "sieve"


def test_an_attack_that_fails_is_named_and_the_others_go_on(tiny: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise GradleakError("something is wrong")

    monkeypatch.setattr(Sieve, "run", broken)
    result = Auto(budget=5.0)(tiny, capture(tiny), Knowledge(labels=[0, 1], lengths=tiny.encode(TEXTS).lengths))
    assert "sieve failed (something is wrong); the others went on" in result.notes
    assert result.token_ids


def test_noise_on_word_embeddings_is_attacked_and_not_refused(tiny: Target) -> None:
    update = Client(tiny, embeddings="trained").update(["the cat sat on the mat"], [0])
    noisy = defend(update, [parse_defense("noise:0.01")], torch.Generator().manual_seed(0))
    result = Sieve()(tiny, noisy, budget=1.0)
    assert result.token_ids


def names(target: Target, update: Update) -> list[str]:
    victim = victim_of(update)
    return [attack.name for attack in plan(target, victim, examine(target, victim.gradient))]


def test_the_strongest_attack_comes_first_and_only_those_that_apply(tiny: Target) -> None:
    assert names(tiny, capture(tiny)) == ["sieve", "lamp", "grab"]
    assert names(tiny, capture(tiny, dropout=True)) == ["sieve", "grab", "lamp"]
    assert "mosaic" in names(tiny, capture(tiny, embeddings="trained"))
    assert "mosaic" not in names(tiny, capture(tiny, "noise:0.001", embeddings="trained"))
    classifier = {n: t for n, t in capture(tiny).tensors.items() if "attention" not in n}
    assert "sieve" not in names(tiny, Update(classifier))


@pytest.mark.parametrize("dropout", [False, True])
def test_a_batch_is_read_and_verified_with_nothing_known(tiny: Target, dropout: bool) -> None:
    result = Auto()(tiny, capture(tiny, dropout=dropout))
    assert sorted(result.texts) == sorted(TEXTS)
    assert result.verified
    source = "the first layer's gradient" if dropout else "the whole gradient"
    assert f"sieve: text confirmed against {source}" in result.notes
    assert result.complete is not dropout
    assert result.verdict.startswith("Leak confirmed")
    assert not any(note.startswith(("lamp", "grab")) for note in result.notes)


@pytest.mark.parametrize(
    ("text", "label", "proven"),
    [
        ("my father lost all his money", 1, True),
        ("my father lost all his gold", 1, False),
        ("my father lost his all money", 1, False),
        ("my father lost all his money", 0, False),
    ],
)
@pytest.mark.parametrize("embeddings", ["frozen", "trained"])
def test_words_that_give_the_very_update_are_proven_whoever_found_them(
    tiny: Target, text: str, label: int, proven: bool, embeddings: Any
) -> None:
    update = Client(tiny, embeddings=embeddings).update(TEXTS[:1], [1])
    victim = victim_of(update)
    finding = Finding(tiny.encode([text]).ids.tolist(), [label], 0.5)
    assert verified_by_gradient(tiny, victim, finding).verified is proven
    changed = victim_of(defend(update, [parse_defense("prune:0.1")], torch.Generator().manual_seed(0)))
    assert not verified_by_gradient(tiny, changed, finding).verified


def test_a_model_without_attention_is_searched_until_nothing_can_be_nearer_and_never_verified() -> None:
    target = small_target("lstm")
    update = Client(target, embeddings="trained").update(["the cat sat on a mat"], [1])
    assert names(target, update)[0] == "mosaic"
    result = Auto()(target, update)
    assert result.texts == ("the cat sat on a mat",)
    assert not result.verified
    assert NO_ATTENTION in result.notes
    assert not any(note.startswith(("lamp", "grab")) for note in result.notes)


def test_a_budget_ends_the_search_and_the_nearest_is_returned(tiny: Target) -> None:
    update = capture(tiny, "noise:0.05")
    started = time.monotonic()
    result = Auto(budget=3.0)(tiny, update, Knowledge(labels=[0, 1], lengths=tiny.encode(TEXTS).lengths))
    assert time.monotonic() - started < 40
    assert not result.verified
    assert any("from the update's (0 to 1)" in note for note in result.notes)
    assert result.token_ids


def test_no_budget_is_refused() -> None:
    with pytest.raises(GradleakError, match="budget must be above 0, not 0"):
        Auto(budget=0)


def test_attacks_that_search_are_told_what_was_read(tiny: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Victim] = {}
    read = [(101, 7592, 102), (101, 7592, 2088, 102)]

    def guess(attack: Attack, target: Target, victims: list[Victim], _: object) -> list[Finding]:
        told[attack.name] = victims[0]
        return [Finding(read, [1, 0], 1.0)]

    for kind in (Sieve, Lamp, Grab):
        monkeypatch.setattr(kind, "run", guess)
    Auto(budget=30.0)(tiny, capture(tiny))
    assert told["sieve"].knowledge == Knowledge()
    for name in ("lamp", "grab"):
        assert told[name].knowledge == Knowledge(batch_size=2, lengths=(3, 4), labels=(1, 0))
        assert told[name].draft == read
    Auto(budget=30.0)(tiny, capture(tiny), Knowledge(lengths=(8, 8)))
    assert told["lamp"].knowledge.lengths == (8, 8)
    assert not told["lamp"].draft
    Auto(budget=30.0)(tiny, capture(tiny), Knowledge(labels=(0, 0)))
    assert told["lamp"].knowledge.labels == (0, 0)
