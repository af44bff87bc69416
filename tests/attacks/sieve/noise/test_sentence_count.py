from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.noise.sentence_count import class_fractions, count_noisy_sentences
from gradleak.defenses import parse_defense
from gradleak.federation import Client
from gradleak.priors import Prior, load_prior
from gradleak.targets import Target, load_target
from wide_targets import wider_target

TEXTS = (
    "the old man walked slowly down the road to the sea .",
    "we had dinner with my sister and her three children .",
    "nobody knows why the ship never came back .",
    "she wrote a long letter to her brother in london .",
)
DEVIATION = 1e-4


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny", 2)


@pytest.fixture(scope="module")
def prior(target: Target) -> Prior:
    return load_prior("embedded", target)


@pytest.mark.parametrize("labels", [(1,), (0, 1), (1, 1, 0, 1)])
def test_sentences_are_counted_without_singular_values(target: Target, prior: Prior, labels: tuple[int, ...]) -> None:
    update = Client(target).update(list(TEXTS[: len(labels)]), list(labels))
    sent = parse_defense(f"noise:{DEVIATION}").apply(update, torch.Generator().manual_seed(0))
    assert count_noisy_sentences(target, sent.tensors, prior) == len(labels)


def test_the_fraction_of_each_class_is_that_of_the_batch(target: Target) -> None:
    update = Client(target).update(list(TEXTS), [1, 1, 0, 1])
    fractions = class_fractions(target, update.tensors)
    assert fractions is not None
    assert fractions.tolist() == pytest.approx([0.25, 0.75], abs=0.02)
    assert class_fractions(target, {}) is None


def test_nothing_is_counted_without_a_language_model_or_the_classifiers_bias(prior: Prior) -> None:
    small = wider_target()
    update = Client(small).update(["big dog ran"], [1])
    assert count_noisy_sentences(small, update.tensors, None) is None
    without = {name: own for name, own in update.tensors.items() if name != f"{small.classifier}.bias"}
    assert count_noisy_sentences(small, without, prior) is None
