"""Where descents start: from a victim's draft if its words come nearer to the update than any sample."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradleak.attacks import Lamp, Victim
from gradleak.exchange import Knowledge, Reporter
from gradleak.federation import Client
from gradleak.optimisation.guess import best_texts
from gradleak.optimisation.start import best_sample
from gradleak.targets import Target, load_target

TEXTS = ["my father lost all his money", "she never spoke about the war"]
NEARLY = ["my father lost all his gold", "she never spoke about a war"]


@pytest.fixture(scope="module")
def tiny() -> Target:
    return load_target("tiny", 2)


def tokens_of(target: Target, texts: list[str]) -> list[list[int]]:
    tokens = target.encode(texts)
    return [row[kept].tolist() for row, kept in zip(tokens.ids, tokens.mask, strict=True)]


def victim_of(target: Target, draft: list[list[int]]) -> Victim:
    known = Knowledge(labels=(0, 1), lengths=target.encode(TEXTS).lengths)
    return Victim(Client(target).update(TEXTS, [0, 1]).gradient(), known, torch.Generator().manual_seed(0), draft=draft)


def starts_of(target: Target, victims: list[Victim]) -> list[tuple[float, tuple[str, ...]]]:
    """Return distance and nearest words of each victim's start."""
    attack = Lamp(starts=8)
    cohort = attack.cohort(target, victims, Reporter())
    guess = best_sample(cohort, attack.starts)
    return best_texts(target, replace(guess, losses=cohort.matcher(guess.candidates(target))))


def test_a_descent_starts_from_a_draft_that_is_near(tiny: Target) -> None:
    victims = [victim_of(tiny, tokens_of(tiny, NEARLY)), victim_of(tiny, [])]
    (near, texts), other = starts_of(tiny, victims)
    assert texts == tuple(NEARLY)
    assert near < other[0]
    assert other[1] == starts_of(tiny, [victim_of(tiny, [])])[0][1]


def test_a_draft_of_other_lengths_is_no_start(tiny: Target) -> None:
    draft = tokens_of(tiny, ["my father lost money", "she never spoke"])
    assert starts_of(tiny, [victim_of(tiny, draft)]) == starts_of(tiny, [victim_of(tiny, [])])


def test_a_draft_that_is_farther_than_a_sample_is_no_start(tiny: Target) -> None:
    draft, sample = victim_of(tiny, tokens_of(tiny, NEARLY)), victim_of(tiny, [])
    opposite = {name: -tensor for name, tensor in draft.gradient.items()}
    away = [replace(victim, gradient=opposite) for victim in (draft, sample)]
    assert starts_of(tiny, away[:1]) == starts_of(tiny, away[1:])
