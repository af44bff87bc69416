"""Forest reads rounded updates of all weights, prefix by prefix, and takes superfluous prefixes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradleak.attacks import find_attack
from gradleak.attacks.forest.growth import grow_under_noise
from gradleak.attacks.forest.prefix_inputs import PrefixInputs
from gradleak.attacks.forest.residual import Residual
from gradleak.attacks.forest.selection import significant
from gradleak.attacks.forest.sites import find_sites
from gradleak.attacks.forest.text_weights import without_light_texts
from gradleak.exchange import Deadline, FedAvg, Knowledge, Protocol
from gradleak.leakage.drift import halfway
from wide_targets import LABELS, TEXTS, ids_of, sent, wider_target

CLIENTS: dict[str, dict[str, Any]] = {
    "a difference of weights": {"fedavg": FedAvg(steps=1, lr=1e-2)},
    "a step for each text": {"fedavg": FedAvg(steps=3, lr=3e-4, batch=1)},
    "epochs of mini-batches": {"fedavg": FedAvg(epochs=5, lr=1e-4, batch=2)},
    "fp16": {"send": "fp16"},
    "bf16": {"send": "bf16"},
}


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("task", ["causal-lm", "classification"])
def test_rounded_updates_of_all_weights_are_read(family: str, task: Any, client: dict[str, Any]) -> None:
    target = wider_target(family, task, **({"n_layer": 4} if family == "gpt2" else {"num_hidden_layers": 4}))
    found = find_attack("forest")()(target, sent(target, TEXTS, LABELS, **client), Knowledge())
    assert sorted(found.texts) == sorted(TEXTS)
    assert found.verified


def test_prefixes_are_superfluous_if_their_coefficients_are_noise() -> None:
    stream = torch.Generator().manual_seed(0)
    prefixes = [(1,), (1, 2), (1, 2, 3), (4,), (1, 5), (1, 5, 6), (1, 2, 7)]
    vectors = torch.randn(7, 60, generator=stream, dtype=torch.float64)
    vectors[6] = vectors[2] + 0.05 * vectors[6]  # resembles the third
    weights = torch.randn(40, 4, generator=stream, dtype=torch.float64)
    noise = 0.1 * torch.randn(40, 60, generator=stream, dtype=torch.float64)
    assert significant(prefixes, [weights @ vectors[:4] + noise], [vectors]) == [0, 1, 2, 3]


@pytest.mark.parametrize("task", ["causal-lm", "classification"])
def test_texts_that_were_not_trained_on_have_no_weight(task: Any) -> None:
    target = wider_target("llama", task)
    right = ids_of(target)
    wrong = ids_of(target, ["the cat sat on a dog", "a red dog sat .", "b c"])
    gradient = sent(target, TEXTS, LABELS, send="bf16").gradient()
    assert without_light_texts(target, gradient, [*wrong, *right]) == right


def test_local_steps_are_read_at_the_mean_of_their_weights() -> None:
    target = wider_target("gpt2")
    update = sent(target, TEXTS, LABELS, fedavg=FedAvg(steps=4, lr=1e-2))
    before = {name: target.parameters[name].detach().clone() for name in update.tensors}
    with halfway(target, update.gradient(), update.protocol):
        for name, change in update.tensors.items():
            torch.testing.assert_close(target.parameters[name], before[name] + 0.375 * change)
    with halfway(target, update.gradient(), Protocol()):
        assert all(torch.equal(target.parameters[name], own) for name, own in before.items())
    assert all(torch.equal(target.parameters[name], own) for name, own in before.items())


def test_where_everything_seems_to_fit_growth_is_bounded() -> None:
    """Row spaces of which little is missing hold every prefix, nearly."""
    target = wider_target("llama", "causal-lm")
    sites = find_sites(target, sent(target).gradient())
    width = sites[1].width
    residuals = [Residual(torch.eye(width, dtype=torch.float64)[: width - 1])] * 3
    numbers = [n for n, site in enumerate(sites) if site.width == width and not site.tokenwise][:3]
    words = torch.arange(5, 15)
    found = grow_under_noise(
        PrefixInputs(target, sites), residuals, numbers, lambda position: words, Deadline(), drift=True
    )
    assert len(found) <= 2 * (width - 1)
