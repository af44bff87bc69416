"""Many updates defended at once are what each would be alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from gradleak.defenses import DEFENSES, Defense, defend, defend_each, defend_examples, examples_needed, parse_defense
from gradleak.exchange import Update

CERTAIN = ["sign", "prune:0.9", "prune-global:0.9", "topk:0.05", "clip:0.7", "dpsgd:0.7,0"]
RANDOM = ["noise:0.3", "laplace:0.3", "mask:0.4", "dpsgd:0.5,0.3"]
SHAPES = {"matrix": (12, 7), "vector": (5,), "number": ()}


def gradients(count: int = 4) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(3)
    return {name: torch.randn(count, *shape, generator=stream) for name, shape in SHAPES.items()}


def one_by_one(tensors: dict[str, torch.Tensor], texts: list[str]) -> dict[str, torch.Tensor]:
    chosen = [parse_defense(text) for text in texts]
    sent = []
    for number in range(len(tensors["matrix"])):
        update = Update({name: tensor[number] for name, tensor in tensors.items()})
        stream = torch.Generator().manual_seed(0)
        defended = (
            defend_examples([update], chosen, stream) if examples_needed(chosen) else defend(update, chosen, stream)
        )
        sent.append(defended.tensors)
    return {name: torch.stack([tensors[name] for tensors in sent]) for name in tensors}


def test_every_defense_is_covered_here() -> None:
    ours = {name for name, kind in DEFENSES.items() if kind.__module__.startswith("gradleak.")}
    assert {text.partition(":")[0] for text in CERTAIN + RANDOM} == ours


@pytest.mark.parametrize("texts", [*([text] for text in CERTAIN), ["clip:0.5", "prune:0.5", "sign"], []], ids=str)
def test_certain_defenses_give_the_same_at_once_as_one_by_one(texts: list[str]) -> None:
    tensors = gradients()
    found = defend_each(tensors, [parse_defense(text) for text in texts], torch.Generator())
    expected = one_by_one(tensors, texts)
    assert all(torch.equal(found[name], expected[name]) for name in SHAPES)


@pytest.mark.parametrize("text", RANDOM)
def test_random_defenses_draw_anew_for_each_update_and_from_the_same_distribution(text: str) -> None:
    tensors = {"matrix": torch.full((2, 300, 400), 0.25)}
    both = defend_each(tensors, [parse_defense(text)], torch.Generator().manual_seed(1))["matrix"]
    alone = one_by_one(tensors, [text])["matrix"][0]
    assert not torch.equal(both[0], both[1])
    for sent in both:
        assert float(sent.mean()) == pytest.approx(float(alone.mean()), abs=0.01)
        assert float(sent.std()) == pytest.approx(float(alone.std()), rel=0.02)


def test_a_defense_of_the_users_own_works_at_once_without_a_line_more() -> None:
    @dataclass(frozen=True)
    class Halve(Defense):
        name, summary, takes = "halve", "", ""

        def is_sensible(self) -> bool:
            return True

        def apply(self, update: Update, generator: torch.Generator, memory: object = None) -> Update:
            chance = torch.rand((), generator=generator)
            return update.with_tensors({n: t / 2 + 0 * chance for n, t in update.tensors.items()})

    tensors = gradients()
    found = defend_each(tensors, [Halve()], torch.Generator().manual_seed(0))
    assert all(torch.equal(found[name], tensor / 2) for name, tensor in tensors.items())


@pytest.mark.parametrize("text", ["sign", "prune:0.9", "noise:0", "mask:0"])
def test_a_defense_by_tensor_changes_each_tensor_as_if_it_were_alone(text: str) -> None:
    defense = parse_defense(text)
    assert defense.by_tensor
    tensors = gradients()
    whole = defense.apply_each(tensors, torch.Generator())
    for name, tensor in tensors.items():
        assert torch.equal(defense.apply_each({name: tensor}, torch.Generator())[name], whole[name])


@pytest.mark.parametrize("text", ["prune-global:0.9", "topk:0.1", "clip:1", "dpsgd:1,0"])
def test_defenses_that_look_at_all_tensors_say_so(text: str) -> None:
    assert not parse_defense(text).by_tensor
