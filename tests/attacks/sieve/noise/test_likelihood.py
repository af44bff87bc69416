from __future__ import annotations

import pytest
import torch

from gradleak.attacks.sieve.defended.reader import noise_energy
from gradleak.attacks.sieve.noise.likelihood import Likelihood, likeliest_label
from gradleak.attacks.sieve.observed import ObservedUpdate
from gradleak.defenses import parse_defense
from gradleak.federation import Client
from gradleak.leakage.layer_inputs import first_layer_inputs
from gradleak.leakage.perturbation import noise_deviation
from gradleak.priors import Prior
from gradleak.targets import Target
from wide_targets import ids_of, wider_target

TEXT = "the big dog ran on a mat"


class Fond(Prior):
    """A prior that finds one sentence likelier than all others, by so many nats."""

    def __init__(self, sentence: tuple[int, ...], nats: float) -> None:
        self.sentence, self.nats = torch.tensor(sentence), nats

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = zip(ids, mask, strict=True)
        liked = torch.tensor([torch.equal(row[there], self.sentence) for row, there in rows]).double()
        return -liked * self.nats / (mask.sum(dim=1) - 1)


def noisy(target: Target, deviation: float) -> ObservedUpdate:
    update = Client(target).update([TEXT], [1])
    update = parse_defense(f"noise:{deviation}").apply(update, torch.Generator().manual_seed(0))
    return ObservedUpdate(
        target, first_layer_inputs(target), update.tensors, torch.arange(5, len(target.word_embeddings)), 16
    )


def near_misses(truth: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One word changed, two swapped, one missing."""
    other = next(token for token in range(5, 100) if token not in truth)
    return [(*truth[:2], other, *truth[3:]), (*truth[:2], truth[3], truth[2], *truth[4:]), (*truth[:2], *truth[3:])]


def test_the_deviation_of_noise_is_read_with_and_without_the_keys_biases() -> None:
    target = wider_target()
    observed = noisy(target, 0.01)
    first = observed.inputs.maps[0]
    assert noise_deviation(target, observed.gradient, first) == pytest.approx(0.01, rel=0.15)
    biases = {layer.key.bias for layer in target.layers}
    without = {name: tensor for name, tensor in observed.gradient.items() if name not in biases}
    assert noise_deviation(target, without, first) == pytest.approx(0.01, rel=0.15)


def test_compressed_updates_have_no_noise() -> None:
    target = wider_target()
    update = parse_defense("prune:0.9").apply(Client(target).update([TEXT], [1]), torch.Generator())
    assert noise_energy(ObservedUpdate(target, first_layer_inputs(target), update.tensors, torch.arange(5, 9), 16)) == 0
    assert noise_energy(noisy(target, 0.01)) > noise_energy(noisy(target, 0.001)) > 0


def test_the_truth_is_explained_and_near_misses_are_not() -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    likelihood = Likelihood(target, noisy(target, 1e-4).gradient, 1e-4, 1)
    assert likelihood.leaves_only_noise(truth)
    assert not any(likelihood.leaves_only_noise(wrong) for wrong in near_misses(truth))
    assert int(likelihood([truth, *near_misses(truth)]).argmax()) == 0


def test_the_class_is_found_with_and_without_the_classifiers_bias() -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    gradient = dict(noisy(target, 1e-4).gradient)
    assert likeliest_label(target, gradient, truth) == 1
    del gradient[f"{target.classifier}.bias"]
    assert likeliest_label(target, gradient, truth) == 1


def test_a_prior_decides_what_the_update_leaves_open_and_nothing_else() -> None:
    target = wider_target()
    (truth,) = ids_of(target, [TEXT])
    wrong = near_misses(truth)[0]
    gradient = noisy(target, 1e-4).gradient
    prior = Fond(wrong, nats=10.0)

    def chosen(deviation: float, prior: Prior | None) -> tuple[int, ...]:
        both = [truth, wrong]
        return both[int(Likelihood(target, gradient, deviation, 1).posterior(both, prior).argmax())]

    assert chosen(1e-4, None) == truth
    assert chosen(1e-4, prior) == truth  # decided by the update
    assert chosen(1e3, None) == truth
    assert chosen(1e3, prior) == wrong  # so much noise leaves it open
