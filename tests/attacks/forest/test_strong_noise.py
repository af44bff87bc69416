"""Texts are read under the adapters' dropout and after several steps of Adam, and only what is repeated is proven."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conftest import small_target
from gradleak.attacks import find_attack
from gradleak.attacks.forest.judge import UpdateJudge
from gradleak.attacks.forest.trained_prior import TrainedPrior, moved_by
from gradleak.exchange import FedAvg, Knowledge, Reconstruction
from gradleak.federation import Client
from gradleak.leakage.first_step import as_gradient
from gradleak.targets import Target
from gradleak.targets.adapters import Lora
from gradleak.targets.adapters.fresh import with_lora

pytest.importorskip("peft")

TEXT, OTHER = "the big dog ran on a mat", "a cat sat ."
SHAPE = {"hidden_size": 64, "num_hidden_layers": 5, "intermediate_size": 96, "attention_dropout": 0.0}
STEPS = FedAvg(steps=2, lr=1e-4, optimizer="adamw")
ONE_STEP = FedAvg(steps=1, lr=1e-3, optimizer="adamw")


def decoder(lora: str | None = "r=16") -> Target:
    target = small_target("llama", "causal-lm", **SHAPE)
    return target if lora is None else with_lora(target, Lora.parse(lora))


def ids_of(target: Target, text: str) -> tuple[int, ...]:
    tokens = target.encode([text])
    return tuple(tokens.ids[0][tokens.mask[0]].tolist())


def read(target: Target, texts: list[str], **client: Any) -> Reconstruction:
    return find_attack("forest")()(target, Client(target, **client).update(texts), Knowledge(), budget=60)


def test_a_text_is_read_under_the_adapters_dropout_and_not_proven() -> None:
    found = read(decoder("r=16,dropout=0.05"), [TEXT], dropout=True)
    assert found.texts == (TEXT,)
    assert not found.verified
    assert any("the adapters' dropout counts as noise" in note for note in found.notes)


def test_texts_trained_for_several_steps_of_adam_are_read_and_proven() -> None:
    found = read(decoder(), [TEXT, OTHER], fedavg=STEPS)
    assert sorted(found.texts) == sorted([TEXT, OTHER])
    assert found.verified
    assert any("repeated on these texts" in note for note in found.notes)


def test_a_forged_update_of_several_steps_is_not_verified() -> None:
    target = decoder()
    update = Client(target, fedavg=STEPS).update([TEXT])
    generator = torch.Generator().manual_seed(0)
    noisy = {n: t * (1 + 0.02 * torch.randn(t.shape, generator=generator)) for n, t in update.tensors.items()}
    assert not find_attack("forest")()(target, update.with_tensors(noisy), Knowledge(), budget=20).verified


@pytest.mark.parametrize("client", [{}, {"fedavg": STEPS}])
def test_the_trained_text_is_nearer_than_one_with_another_word(client: dict[str, Any]) -> None:
    target = decoder()
    update = Client(target, **client).update([TEXT])
    judge = UpdateJudge(target, update.gradient(), update.protocol)
    right = ids_of(target, TEXT)
    other = ids_of(target, TEXT.replace("dog", "cat"))
    assert judge([right]) < 0.5 * judge([other])
    assert judge([right[:1]]) == 2.0


def test_the_text_of_one_step_of_adam_takes_that_step() -> None:
    """Compared as gradients they differ: a step hardly shows the size of large entries."""
    target = decoder()
    update = Client(target, fedavg=ONE_STEP).update([TEXT])
    judge = UpdateJudge(target, as_gradient(target, update), update.protocol)
    assert judge([ids_of(target, TEXT)]) < 1e-3


def test_texts_of_one_step_of_adam_are_read_and_proven() -> None:
    found = read(decoder(), [TEXT, OTHER], fedavg=ONE_STEP)
    assert sorted(found.texts) == sorted([TEXT, OTHER])
    assert found.verified


def test_the_last_token_rises_by_the_update() -> None:
    target = decoder()
    update = Client(target).update([TEXT])
    ids = ids_of(target, TEXT)
    rises = TrainedPrior(target, update.gradient(), update.protocol).rises(ids[:-1])
    assert int(rises.argmax()) == ids[-1]


def test_a_moved_target_is_as_before_afterwards_even_after_an_error() -> None:
    target = decoder()
    name = target.adapters[0].a
    before, fingerprint = target.parameters[name].detach().clone(), target.fingerprint

    def fail_inside() -> None:
        with moved_by(target, {name: torch.ones_like(before)}):
            torch.testing.assert_close(target.parameters[name].detach(), before + 1)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    assert torch.equal(target.parameters[name].detach(), before)
    assert target.fingerprint == fingerprint
