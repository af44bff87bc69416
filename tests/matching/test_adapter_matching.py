"""The engine on adapters: `lora_A` and `lora_B` are linear layers, and their rule holds."""

from __future__ import annotations

import pytest
import torch
from oracle import oracle

from conftest import ALL_KINDS, TARGET_KINDS, small_target
from gradleak.federation import Client
from gradleak.matching import L1, Candidates, Cosine, Distance, Matcher, SquaredL2, vanishing_parameters
from gradleak.matching.rule_check import check_rules
from gradleak.targets import Lora, Target, Task
from gradleak.targets.adapters.fresh import with_lora
from gradleak.targets.dropout import dropout_sites

every_kind = pytest.mark.parametrize(("family", "task"), [*TARGET_KINDS, ("llama", "classification")])
TEXTS, LABELS = ["the cat sat on", "dog ran"], [1, 0]


def adapted(family: str, task: Task, **settings: float) -> Target:
    base = small_target(family, task, dtype=torch.float64)
    return with_lora(base, Lora(r=2, rounds=3, **settings))  # type: ignore[arg-type]


def candidates(target: Target, *, embeddings: bool = False) -> Candidates:
    generator = torch.Generator().manual_seed(0)
    ids, mask = target.encode(TEXTS)
    guesses = torch.randint(5, len(target.word_embeddings), (1, 3, *ids.shape), generator=generator)
    labels = guesses if target.task == "causal-lm" else torch.tensor(LABELS).expand(1, 3, 2)
    inputs = target.embed(guesses).requires_grad_() if embeddings else guesses
    return Candidates(inputs, mask.expand(1, 3, *mask.shape), labels)


@pytest.mark.parametrize(("family", "task"), ALL_KINDS)
def test_every_parameter_of_an_adapter_is_covered_by_a_rule(family: str, task: Task) -> None:
    target = adapted(family, task)
    assert set(target.trained_parameters) <= check_rules(target).trusted
    assert {name for module in target.adapters for name in (module.a, module.b)} <= check_rules(target).linear


@every_kind
@pytest.mark.parametrize("distance", [SquaredL2(), L1(), Cosine()], ids=repr)
def test_distances_of_adapter_gradients_are_autograds(family: str, task: Task, distance: Distance) -> None:
    target = adapted(family, task)
    observed = Client(target).update(TEXTS, LABELS).gradient()
    matcher = Matcher(target, [observed], distance)
    assert matcher.slow_parameters == []
    assert set(matcher.parameters) == set(target.trained_parameters)
    guesses = candidates(target)
    torch.testing.assert_close(matcher(guesses), oracle(target, [observed], distance, guesses, matcher.parameters))


@every_kind
def test_gradients_of_distances_are_autograds(family: str, task: Task) -> None:
    target = adapted(family, task)
    observed = Client(target).update(TEXTS, LABELS).gradient()
    matcher = Matcher(target, [observed], Cosine())
    guesses = candidates(target, embeddings=True)
    expected = oracle(target, [observed], Cosine(), guesses, matcher.parameters).sum()
    (slope,) = torch.autograd.grad(expected, guesses.inputs)
    _, found = matcher.gradients(guesses)
    torch.testing.assert_close(found["inputs"], slope)


def test_masks_on_the_adapters_dropout_are_applied() -> None:
    target = adapted("bert", "classification", dropout=0.5)
    guesses = candidates(target)
    sites = dropout_sites(target, guesses.mask.shape[-1])
    path = f"{target.adapters[0].path}.lora_dropout.default"
    assert sites[path].rate == 0.5
    observed = Client(target).update(TEXTS, LABELS).gradient()
    matcher = Matcher(target, [observed], SquaredL2())
    masks = {path: torch.zeros(*guesses.shape, *sites[path].shape, dtype=torch.float64)}
    dropped = Candidates(guesses.inputs, guesses.mask, guesses.labels, dropout=masks)
    assert not torch.equal(matcher(dropped), matcher(guesses))
    torch.testing.assert_close(matcher(dropped), oracle(target, [observed], SquaredL2(), dropped, matcher.parameters))


def test_a_of_a_first_round_is_not_compared() -> None:
    target = with_lora(small_target(), Lora(r=2, rounds=0))
    assert {module.a for module in target.adapters} <= vanishing_parameters(target)
    observed = Client(target).update(TEXTS, LABELS).gradient()
    assert not any("lora_A" in name for name in Matcher(target, [observed], Cosine()).parameters)
