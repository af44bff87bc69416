"""What an update shows of how it was made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import TARGET_KINDS, small_target
from gradleak.defenses import defend, parse_defense
from gradleak.federation import Client
from gradleak.leakage.perturbation import (
    MAPS_PRUNED,
    looks_noisy,
    looks_pruned,
    marchenko_pastur_edge,
    noise_level,
    zero_fraction,
)
from gradleak.targets import Task, family_of, load_target

TEXTS = ["the cat sat on a mat", "dog ran"]


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(("family", "task"), [kind for kind in TARGET_KINDS if not family_of(kind[0]).rotary])
def test_noise_is_measured_where_keys_have_a_bias(family: str, task: Task, dropout: bool) -> None:
    target = small_target(family, task)
    labels = [1, 0] if task == "classification" else None
    update = Client(target, dropout=dropout).update(TEXTS, labels)
    assert noise_level(target, update.gradient()) == 0.0
    stream = torch.Generator().manual_seed(0)
    noisy = defend(update, [parse_defense("noise:0.01")], stream).gradient()
    assert noise_level(target, noisy) == pytest.approx(0.01, rel=0.5)
    assert looks_noisy(target, noisy)
    assert not looks_noisy(target, update.gradient())


def test_biases_of_rotated_keys_are_no_measure_of_noise() -> None:
    target = small_target("qwen2")
    update = Client(target).update(TEXTS, [1, 0]).gradient()
    assert update[target.layers[0].key.bias].abs().max() > 1e-3 * update[target.layers[0].query.bias].abs().max()
    assert noise_level(target, update) is None
    assert not looks_noisy(target, update)


def test_noise_is_measured_closely_on_the_embedded_model() -> None:
    target = load_target("tiny", 2)
    update = Client(target, dropout=True).update(TEXTS, [1, 0])
    for level in (1e-4, 1e-3, 1e-2):
        noisy = defend(update, [parse_defense(f"noise:{level}")], torch.Generator().manual_seed(0)).gradient()
        assert noise_level(target, noisy) == pytest.approx(level, rel=0.1)


def test_noise_is_unknown_without_attention_biases() -> None:
    target = small_target("bert")
    gradient = {n: g for n, g in Client(target).update(TEXTS, [1, 0]).gradient().items() if "attention" not in n}
    assert noise_level(target, gradient) is None
    assert not looks_noisy(target, gradient)


@pytest.mark.parametrize(("defense", "share"), [("prune:0.9", 0.9), ("prune:0.99", 0.99)])
def test_pruning_shows_in_the_zeros(defense: str, share: float) -> None:
    target = load_target("tiny", 2)
    update = Client(target, embeddings="trained").update(TEXTS, [1, 0])
    assert zero_fraction(target, update.gradient()) < 0.05
    assert not looks_pruned(target, update.gradient())
    pruned = defend(update, [parse_defense(defense)], torch.Generator().manual_seed(0)).gradient()
    assert zero_fraction(target, pruned) == pytest.approx(share, abs=0.02)
    assert looks_pruned(target, pruned)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_pruning_shows_in_the_attention_maps_alone(family: str) -> None:
    target = small_target(family)
    maps = (target.layers[0].query, target.layers[0].value)
    update = Client(target).update(TEXTS, [1, 0])
    assert not looks_pruned(target, update.gradient(), maps, MAPS_PRUNED)
    pruned = defend(update, [parse_defense("prune:0.3")], torch.Generator().manual_seed(0)).gradient()
    assert looks_pruned(target, pruned, maps, MAPS_PRUNED)


def test_the_edge_is_where_the_singular_values_of_noise_end() -> None:
    for rows, columns in ((300, 300), (900, 300)):
        values = np.linalg.svd(np.random.default_rng(0).standard_normal((rows, columns)), compute_uv=False)
        edge = np.median(values) * marchenko_pastur_edge(columns / rows)
        assert 0.95 < values[0] / edge < 1.02
