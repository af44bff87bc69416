"""Auto looks before it attacks, orders what applies, and keeps to its budget."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import Auto, Victim
from gradleak.attacks.auto import NO_ATTENTION, _is_proven, examine, plan
from gradleak.attacks.base import Finding
from gradleak.attacks.sieve import HIDDEN
from gradleak.defenses import defend, parse_defense
from gradleak.errors import GradleakError
from gradleak.exchange import Knowledge, Update
from gradleak.federation import Client
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


@pytest.mark.parametrize(
    ("defenses", "client", "expected"),
    [
        ([], {}, ["embedding gradients: not sent", "no dropout"]),
        ([], {"dropout": True}, ["dropout likely"]),
        ([], {"embeddings": "trained"}, ["embedding gradients: sent, so that the words are known"]),
        ([], {"embeddings": "words-frozen"}, ["embedding gradients: of positions, not of words"]),
        (["prune:0.9"], {}, ["pruned to 10 %"]),
        (["noise:0.0005"], {}, ["noise about 0.0005"]),
        (["sign"], {}, ["only signs were sent"]),
    ],
)
def test_it_says_what_an_update_shows(
    tiny: Target, defenses: list[str], client: dict[str, Any], expected: list[str]
) -> None:
    lines = examine(tiny, capture(tiny, *defenses, **client).gradient()).lines
    assert set(expected) <= set(lines)
    unexpected = {"no dropout", "dropout likely", "only signs were sent"} - set(expected)
    assert not ({"only signs were sent"} & unexpected & set(lines))


def test_it_counts_the_tokens(tiny: Target) -> None:
    dropped = examine(tiny, capture(tiny, dropout=True).gradient())
    assert dropped.tokens == sum(tiny.encode(TEXTS).lengths)


def test_more_tokens_than_the_hidden_size_hide_themselves() -> None:
    target = small_target("bert")
    texts = ["the cat sat on a mat"] * 4 + ["a big red dog ran"] * 4
    evidence = examine(target, Client(target, dropout=True).update(texts, [0, 1] * 4).gradient())
    assert evidence.tokens is None
    assert HIDDEN in evidence.lines


def names(target: Target, update: Update) -> list[str]:
    victim = victim_of(update)
    return [attack.name for attack in plan(target, victim, examine(target, victim.gradient))]


def test_the_strongest_attack_comes_first_and_only_those_that_apply(tiny: Target) -> None:
    assert names(tiny, capture(tiny)) == ["sieve", "lamp", "grab"]
    assert names(tiny, capture(tiny, dropout=True)) == ["sieve", "grab", "lamp"]
    assert "edr" in names(tiny, capture(tiny, embeddings="trained"))
    assert "edr" not in names(tiny, capture(tiny, "noise:0.001", embeddings="trained"))
    classifier = {n: t for n, t in capture(tiny).tensors.items() if "attention" not in n}
    assert "sieve" not in names(tiny, Update(classifier))


@pytest.mark.parametrize("dropout", [False, True])
def test_a_batch_is_read_and_verified_with_nothing_known(tiny: Target, dropout: bool) -> None:
    result = Auto()(tiny, capture(tiny, dropout=dropout))
    assert sorted(result.texts) == sorted(TEXTS)
    assert result.verified
    assert "sieve: verified" in result.notes
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
    assert _is_proven(tiny, victim, finding, examine(tiny, victim.gradient)) is proven
    changed = victim_of(defend(update, [parse_defense("prune:0.1")], torch.Generator().manual_seed(0)))
    assert not _is_proven(tiny, changed, finding, examine(tiny, changed.gradient))


def test_a_model_without_attention_is_searched_until_nothing_can_be_nearer_and_never_verified() -> None:
    target = small_target("lstm")
    update = Client(target, embeddings="trained").update(["the cat sat on a mat"], [1])
    assert names(target, update)[:2] == ["edr", "fet"]
    result = Auto()(target, update)
    assert result.texts == ("the cat sat on a mat",)
    assert not result.verified
    assert NO_ATTENTION in result.notes
    assert HIDDEN not in result.notes
    assert not any(note.startswith(("lamp", "grab")) for note in result.notes)


def test_a_budget_ends_the_search_and_the_nearest_is_returned(tiny: Target) -> None:
    update = capture(tiny, "noise:0.05")
    started = time.monotonic()
    result = Auto(budget=3.0)(tiny, update, Knowledge(labels=[0, 1], lengths=tiny.encode(TEXTS).lengths))
    assert time.monotonic() - started < 40
    assert not result.verified
    assert any("distance" in note for note in result.notes)
    assert result.token_ids


def test_no_budget_is_refused() -> None:
    with pytest.raises(GradleakError, match="the budget must be above 0 seconds, not 0"):
        Auto(budget=0)
